// Colours for what is drawn on canvases: the style sheet's own, and one for each model.

let probe = null;
let known = new Map();
let models = new Map();
let dark = false;

/** Forget all colours: the theme changed. */
export function refresh() {
  known = new Map();
  models = new Map();
  if (probe === null) {
    probe = document.createElement("i");
    probe.hidden = true;
    document.body.append(probe);
  }
  const [red, green, blue] = colour("ground").match(/[\d.]+/g).map(Number);
  dark = red + green + blue < 384;
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

/** A model's colour; `alpha` from 0 to 1 in steps of a hundredth. */
export function model(name, alpha = 1) {
  const key = alpha === 1 ? name : `${alpha}\n${name}`;
  let value = models.get(key);
  if (value === undefined) {
    const number = hash(name);
    const hue = number % 360;
    const step = (number >>> 9) % 3;
    const light = dark ? [0.62, 0.7, 0.78][step] : [0.58, 0.67, 0.76][step];
    const chroma = [0.13, 0.1, 0.085][(number >>> 12) % 3];
    value = rgb(light, chroma, hue) + (alpha === 1 ? "" : byte(alpha));
    if (models.size > 20_000) models.clear();
    models.set(key, value);
  }
  return value;
}

/** Let an element's background be its model's colour. */
export function tint(node, name) {
  const value = model(name);
  if (node.tint !== value) {
    node.tint = value;
    node.style.background = value;
  }
}
