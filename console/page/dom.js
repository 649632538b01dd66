// Making and changing elements. What is shown is only ever set as text, so that no name becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element: `el("a.soft#id", {href: "#/x", onclick: f}, "text", child, ...)`.
 * Keys that begin with "on" are listeners; a value of false, null or undefined leaves the attribute out.
 */
export function el(selector, attributes = {}, ...children) {
  const [, tag, rest] = /^([a-z0-9]+)(.*)$/.exec(selector);
  const made = document.createElement(tag);
  for (const part of rest.match(/[.#][^.#]+/g) ?? []) {
    if (part[0] === "#") made.id = part.slice(1);
    else made.classList.add(part.slice(1));
  }
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Make an icon of one path on a ground of 24 by 24. */
export function icon(path) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

/** Write a text where it differs from what is there: an equal one costs no layout. */
export function write(node, text) {
  if (node.shown !== text) {
    node.shown = text;
    node.textContent = text;
  }
}

/** Set an attribute where it differs; null takes it away. */
export function put(node, name, value) {
  if (value === null || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Set how much of a meter is full, from 0 to 1. */
export function fill(node, share) {
  const text = `scaleX(${Math.max(0, Math.min(1, share)).toFixed(3)})`;
  if (node.style.transform !== text) node.style.transform = text;
}

/**
 * Keep a container's children as a list says: those whose key stays are kept, moved and brought up to date.
 * `make(item)` returns a new element; `update(element, item)` writes into it.
 */
export function keyed(container, items, keyOf, make, update) {
  const known = container.byKey ?? (container.byKey = new Map());
  const wanted = new Set();
  let next = container.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    if (wanted.has(key)) continue;
    wanted.add(key);
    let node = known.get(key);
    if (node === undefined) {
      node = make(item);
      known.set(key, node);
    }
    update(node, item);
    if (node === next) next = next.nextElementSibling;
    else container.insertBefore(node, next);
  }
  for (const [key, node] of known) {
    if (!wanted.has(key)) {
      node.remove();
      known.delete(key);
    }
  }
}

/** A panel with a heading; returns it. More goes into it by `append`. */
export function panel(title, end = null, level = "h2") {
  const header = el("header", {}, el(level, {}, title));
  if (end) {
    end.classList.add("end");
    header.append(end);
  }
  return el("section.panel", { "aria-label": title }, header);
}

/** A group of buttons of which one is pressed: `choice("Time", [["10s", "10 s"]], "10s", taken)`. */
export function choice(label, options, current, taken) {
  const buttons = options.map(([value, text]) =>
    el("button", { type: "button", "aria-pressed": String(value === current), onclick: () => pick(value) }, text));
  function pick(value) {
    options.forEach(([known], at) => buttons[at].setAttribute("aria-pressed", String(known === value)));
    taken(value);
  }
  return el("div.choice", { role: "group", "aria-label": label }, ...buttons);
}
