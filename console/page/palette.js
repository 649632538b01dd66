// Colours for what is drawn on canvases: the style sheet's own, and one for each model.

let probe = null;
let known = new Map();
let models = new Map();
let slots = new Map();
let crowded = false;

/** Lightness, chroma and number of hues of the rows of colours: any two colours can be told from each other. */
const ROWS = [[0.5, 0.15, 11], [0.68, 0.14, 12], [0.84, 0.12, 9]];
const TONES = ROWS.flatMap(([light, chroma, hues], row) => Array.from({ length: hues }, (_, at) => [light, chroma, (360 / hues) * at + 11 * row]));
const STRIDE = 11;

/** Forget all colours: the theme changed. */
export function refresh() {
  known = new Map();
  models = new Map();
  if (probe === null) {
    probe = document.createElement("i");
    probe.hidden = true;
    document.body.append(probe);
  }
}

/** A colour of css/tokens.css, as a canvas takes it. */
export function colour(name) {
  let value = known.get(name);
  if (value === undefined) {
    probe.style.color = `var(--${name})`;
    value = getComputedStyle(probe).color;
    known.set(name, value);
  }
  return value;
}

/** FNV-1a, so that a model has the same colour on every page, device and day. */
function hash(text) {
  let value = 0x811c9dc5;
  for (let at = 0; at < text.length; at += 1) value = Math.imul(value ^ text.charCodeAt(at), 0x01000193) >>> 0;
  value = Math.imul(value ^ (value >>> 15), 0x2c1b3c6d) >>> 0;
  return (value ^ (value >>> 13)) >>> 0;
}

/** OKLab's lightness, chroma and hue (degrees) as #rrggbb: canvases take that far faster than oklch(). */
function rgb(light, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (light - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].reduce((text, part) => text + byte(part <= 0.0031308 ? 12.92 * part : 1.055 * part ** (1 / 2.4) - 0.055), "#");
}

function byte(share) {
  return Math.round(255 * Math.max(0, Math.min(1, share))).toString(16).padStart(2, "0");
}

/**
 * Give the models of a cluster their colours, in the order of their names: as long as there are no more models than
 * colours each has one of its own, the same on every page that knows the same models. Of more than that each has
 * the colour that its name says, and some have the same.
 */
export function learn(names, total = names.length) {
  slots = new Map();
  models = new Map();
  crowded = total > TONES.length;
  if (!crowded) for (const name of [...names].sort()) tone(name);
}

/** A model's lightness, chroma and hue: its name's or, where another model has those, the next free ones. */
function tone(name) {
  const number = hash(name);
  let slot = slots.get(name);
  if (slot === undefined) {
    slot = number % TONES.length;
    if (crowded || slots.size >= TONES.length) return [...TONES[slot].slice(0, 2), number % 360];
    const taken = new Set(slots.values());
    while (taken.has(slot)) slot = (slot + STRIDE) % TONES.length;
    slots.set(name, slot);
  }
  return TONES[slot];
}

/** A model's colour; `alpha` from 0 to 1 in steps of a hundredth. */
export function model(name, alpha = 1) {
  const key = alpha === 1 ? name : `${alpha}\n${name}`;
  let value = models.get(key);
  if (value === undefined) {
    value = rgb(...tone(name)) + (alpha === 1 ? "" : byte(alpha));
    if (models.size > 20_000) models.clear();
    models.set(key, value);
  }
  return value;
}

/** The ink that can be read on a model's colour. */
export function on(name) {
  return tone(name)[0] < 0.6 ? "#ffffff" : "#0b0d11";
}

/** Let an element's background be its model's colour. */
export function tint(node, name) {
  const value = model(name);
  if (node.tint !== value) {
    node.tint = value;
    node.style.background = value;
  }
}
