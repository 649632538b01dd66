// A device's pages as a map: one cell for each page in reading order, coloured by the model that owns it.

import { colour, model as ink, on } from "../palette.js";
import { shortened, surface, tip } from "./canvas.js";

const TALLEST = 440;
const SMALLEST = 7;
const LARGEST = 30;
const GAP = 1;

/** How large cells are and how many stand in a row, for `pages` of them in `width` pixels. */
export function layout(pages, width) {
  const wanted = Math.floor(Math.sqrt((width * TALLEST) / Math.max(1, pages)));
  const cell = Math.max(SMALLEST, Math.min(LARGEST, wanted));
  let columns = Math.max(1, Math.floor(width / cell));
  if (columns >= 16) columns -= columns % 8;
  columns = Math.min(columns, Math.max(1, pages));
  // Few pages keep small cells; many of them share out the whole width.
  const wide = pages > columns ? width / columns : cell;
  return { wide, high: Math.round(wide), columns, rows: Math.ceil(pages / columns) };
}

/** The index of the extent that holds a page; extents are in the order of pages. */
export function extentOf(extents, page) {
  let low = 0;
  let high = extents.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (extents[middle][0] <= page) low = middle;
    else high = middle - 1;
  }
  return low;
}

/**
 * A map in `holder`. `chosen(extent)` is called when another extent (or none: -1) is pointed at or moved to,
 * `open(extent)` when one is clicked or Enter is pressed on it. `words(extent)` gives what the box beside the pointer says.
 */
export function pageMap(holder, { chosen, open, words }) {
  holder.classList.add("plot", "page-map");
  let data = null;
  let shape = null;
  let at = -1;
  const { canvas, redraw, close } = surface(holder, paint, true);
  let drawn = new Set();
  let marked = false;
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "page map");
  const box = tip(holder);

  function fit() {
    if (!data || !holder.clientWidth) return;
    shape = layout(data.pages, holder.clientWidth);
    const height = `${shape.rows * shape.high}px`;
    if (holder.style.height !== height) holder.style.height = height;
  }

  /** Rectangles of an extent: one in each row that it touches. */
  function* strips([first, number]) {
    const { wide, high, columns } = shape;
    for (let page = first; page < first + number;) {
      const column = page % columns;
      const length = Math.min(columns - column, first + number - page);
      const left = Math.round(column * wide);
      const right = Math.round((column + length) * wide);
      yield [left, Math.floor(page / columns) * high, right - left - GAP, high - GAP];
      page += length;
    }
  }

  /** Draw the extents that are not on the canvas yet: every page is in one, so that they cover what changed. */
  function paint(context, width, height, empty) {
    if (!data) return;
    fit();
    const picked = at >= 0 ? data.extents[at]?.[2] : -1;
    const whole = empty || marked || at >= 0;
    if (whole) context.clearRect(0, 0, width, height);
    const before = whole ? new Set() : drawn;
    drawn = new Set();
    marked = at >= 0;
    for (const extent of data.extents) {
      const [first, number, owner, state] = extent;
      const key = `${first} ${number} ${state} ${owner < 0 ? "" : data.models[owner]}`;
      drawn.add(key);
      if (before.has(key)) continue;
      if (!whole) for (const [x, y, wide, high] of strips(extent)) context.clearRect(x, y, wide + GAP, high + GAP);
      if (owner < 0) drawFree(context, extent);
      else drawOwned(context, extent, state, picked >= 0 && owner !== picked, data.models[owner]);
    }
    if (at >= 0 && data.extents[at]) outline(context, data.extents[at][2] >= 0 ? data.extents.filter((one) => one[2] === picked) : [data.extents[at]]);
  }

  function drawFree(context, extent) {
    context.fillStyle = colour("sunk");
    const [first, number] = extent;
    for (let page = first; page < first + number; page += 1) {
      for (const strip of strips([page, 1])) context.fillRect(...strip);
    }
  }

  function drawOwned(context, extent, state, faint, name) {
    context.globalAlpha = faint ? 0.3 : 1;
    context.fillStyle = ink(name);
    for (const [x, y, width, height] of strips(extent)) {
      context.fillRect(x, y, width, height);
      if (state === "loading") hatch(context, x, y, width, height);
    }
    context.globalAlpha = 1;
    if (state !== "loading" && !faint) label(context, extent, name);
  }

  /** The model's name, or its end, in the widest strip of an extent if that has room for it. */
  function label(context, extent, name) {
    const [x, y, width, height] = [...strips(extent)].sort((a, b) => b[2] - a[2])[0];
    if (height < 12 || width < 24) return;
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const text = shortened(context, name, width - 6);
    if (!text) return;
    context.fillStyle = on(name);
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillText(text, x + 3, y + height / 2 + 0.5);
  }

  function outline(context, extents) {
    context.strokeStyle = colour("ink");
    context.lineWidth = 2;
    for (const extent of extents) for (const [x, y, width, height] of strips(extent)) context.strokeRect(x + 1, y + 1, width - 2, height - 2);
  }

  function choose(index, x = null, y = null) {
    if (index >= 0 && x === null) {
      const [left, top, , height] = strips(data.extents[index]).next().value;
      [x, y] = [left, top + height];
    }
    if (index >= 0) box.show(x, y, ...words(data.extents[index]));
    else box.hide();
    if (index === at) return;
    at = index;
    chosen(index < 0 ? null : data.extents[index]);
    redraw();
  }

  function under(event) {
    const column = Math.floor(event.offsetX / shape.wide);
    const page = Math.floor(event.offsetY / shape.high) * shape.columns + column;
    return column >= 0 && column < shape.columns && page >= 0 && page < data.pages ? extentOf(data.extents, page) : -1;
  }

  canvas.addEventListener("pointermove", (event) => data && shape && choose(under(event), event.offsetX, event.offsetY));
  canvas.addEventListener("pointerleave", () => document.activeElement !== canvas && choose(-1));
  canvas.addEventListener("blur", () => choose(-1));
  canvas.addEventListener("focus", () => data?.extents.length && canvas.matches(":focus-visible") && choose(Math.max(0, at)));
  canvas.addEventListener("click", (event) => {
    const index = data && shape ? under(event) : -1;
    if (index >= 0) open(data.extents[index]);
  });
  canvas.addEventListener("keydown", (event) => {
    if (!data?.extents.length) return;
    const last = data.extents.length - 1;
    const row = (by) => extentOf(data.extents, Math.max(0, Math.min(data.pages - 1, data.extents[Math.max(0, at)][0] + by * shape.columns)));
    const to = { ArrowRight: Math.min(last, at + 1), ArrowLeft: Math.max(0, at - 1), ArrowDown: row(1), ArrowUp: row(-1), Home: 0, End: last }[event.key];
    if (to !== undefined) choose(to);
    else if (event.key === "Enter" && at >= 0) open(data.extents[at]);
    else if (event.key === "Escape") choose(-1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  return {
    /** Show a `Memory`. */
    set(memory, label) {
      data = memory;
      if (at >= data.extents.length) at = -1;
      canvas.setAttribute("aria-label", label);
      fit();
      redraw();
    },
    /** Mark a model's pages, or none's. */
    pick(owner) {
      at = owner === null ? -1 : data.extents.findIndex((extent) => extent[2] === owner);
      redraw();
    },
    close,
  };
}

/** Slanted lines over what is not there yet: a sign that needs no colour. */
export function hatch(context, x, y, width, height) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour("panel");
  context.lineWidth = 2;
  context.beginPath();
  for (let left = x - height; left < x + width; left += 6) {
    context.moveTo(left, y + height);
    context.lineTo(left + height, y);
  }
  context.stroke();
  context.restore();
}
