// Lines and stacked areas over the seconds of the last minutes.

import { el } from "../dom.js";
import { colour, model } from "../palette.js";
import { when } from "../text.js";
import { pairs, surface, tip } from "./canvas.js";
import { told } from "./happenings.js";

const LEFT = 54;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;
const REDRAW_MS = 400;
const SECOND_NS = 1e9;
/** Sentences that a second is told with; the list below the charts has all. */
const MOST_TOLD = 4;

/** The next of 1, 2, 5 times a power of ten that is at least `value`. */
export function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value);
}

/** What becomes of requests, as layers of a chart. */
export const OUTCOMES = [
  { name: "in time", colour: "chart-good", pick: (series) => series.in_time },
  { name: "late", colour: "chart-warn", pick: (series) => series.late },
  { name: "rejected", colour: "chart-bad", pick: (series) => series.rejected },
  { name: "offered", colour: "ink", line: true, pick: (series) => series.offered },
];

/** What each layer of a chart is drawn with. */
export function legend(layers) {
  return el("div.legend", { "aria-hidden": "true" }, ...layers.map((layer) => {
    const swatch = el(layer.line ? "i.thin" : "i");
    swatch.style.background = layer.model ? model(layer.model) : `var(--${layer.colour})`;
    return el("span", {}, swatch, layer.name);
  }));
}

function at(seconds, until) {
  const ago_s = until - seconds;
  if (ago_s === 0) return "now";
  return ago_s % 60 === 0 ? `−${ago_s / 60} min` : `−${ago_s} s`;
}

/**
 * A chart in `holder`. `layers` are {name, colour, pick(series), line?, fill?}, or with `model` in place of `colour`: areas are stacked in their order,
 * lines are drawn over them. `unit(value)` writes a value, `axis` says what the values are of, `least` up to which value it reaches at least. `cursor` (cursor.js)
 * is shared by charts of the same time: what one points at all show, and a click or Enter chooses it.
 * `set(series, seconds, head, limit, happenings)` draws the last seconds of a payload's series; `limit` is a level
 * to mark, {value, name}, or null; `happenings` are {at_ns, kind, worker, text}, each marked at its instant and
 * told where the pointer is near.
 */
export function chart(holder, { layers, unit, axis, label, cursor, least = 1 }) {
  holder.classList.add("plot");
  let view = null;
  let later = 0;
  const { canvas, redraw, close } = surface(holder, paint);
  const own = { redraw };
  cursor.charts.add(own);
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "chart");
  const name = (text) => canvas.setAttribute("aria-label", `${text}. Left and right move the cursor, Enter shows that second's requests, Escape lets it go.`);
  name(label);
  const box = tip(holder);
  const instantOf = (column) => view.first_ns + (view.first + column) * SECOND_NS;
  const columnOf = (at_ns) => Math.floor((at_ns - view.first_ns) / SECOND_NS) - view.first;

  function columnAt(event) {
    const share = (event.offsetX - LEFT) / (holder.clientWidth - RIGHT - LEFT);
    const column = Math.round(view.count - 1 - (1 - share) * (view.seconds - 1));
    return column >= 0 && column < view.count ? column : null;
  }
  canvas.addEventListener("pointermove", (event) => {
    const column = view ? columnAt(event) : null;
    cursor.move(column === null ? null : instantOf(column));
  });
  canvas.addEventListener("pointerleave", () => cursor.move(null));
  canvas.addEventListener("blur", () => cursor.move(null));
  canvas.addEventListener("click", (event) => {
    const column = view ? columnAt(event) : null;
    if (column !== null) cursor.pin(instantOf(column));
  });
  canvas.addEventListener("keydown", (event) => {
    if (!view?.count || event.ctrlKey || event.metaKey || event.altKey) return;
    const now = cursor.at_ns ?? cursor.pinned_ns;
    const column = now === null ? view.count - 1 : columnOf(now);
    const to = { ArrowLeft: column - (now !== null), ArrowRight: column + 1, Home: 0, End: view.count - 1 }[event.key];
    if (to !== undefined) cursor.move(instantOf(Math.max(0, Math.min(view.count - 1, to))));
    else if (event.key === "Enter" && cursor.at_ns !== null) cursor.pin(cursor.at_ns);
    else if (event.key === "Escape") cursor.pin(null);
    else return;
    event.preventDefault();
  });

  function set(series, seconds, head, limit = null, happenings = []) {
    const columns = layers.map((layer) => layer.pick(series));
    const length = columns[0]?.length ?? 0;
    const first = Math.max(0, length - seconds);
    const cut = columns.map((column) => column.slice(first));
    const now_ms = performance.now();
    // The last second grows with each picture; to see it grow, a few times a second do.
    clearTimeout(later);
    if (view && now_ms - view.set_ms < REDRAW_MS && view.seconds === seconds && view.first_ns === series.first_ns) {
      later = setTimeout(() => set(series, seconds, head, limit, happenings), REDRAW_MS);
      return;
    }
    const marks = happenings
      .map((one) => ({ column: Math.floor((one.at_ns - series.first_ns) / SECOND_NS) - first, text: told(one) }))
      .filter((one) => one.column >= 0 && one.column < length - first);
    const key = `${series.first_ns} ${seconds} ${limit?.value} ${marks.map((one) => one.column + one.text).join()} ${cut.map((column) => column.join()).join(";")}`;
    if (view?.key === key) return;
    view = { key, cut, seconds, limit, marks, head, first, count: length - first, set_ms: now_ms, first_ns: series.first_ns };
    redraw();
  }

  function heights() {
    let most = view.limit ? view.limit.value * 1.1 : 0;
    for (let column = 0; column < view.count; column += 1) {
      let sum = 0;
      layers.forEach((layer, index) => {
        const value = view.cut[index][column] ?? 0;
        if (layer.line) most = Math.max(most, value);
        else sum += value;
      });
      most = Math.max(most, sum);
    }
    return ceiling(Math.max(most, least));
  }

  function paint(context, width, height) {
    if (!view) return;
    const top = heights();
    const right = width - RIGHT;
    const x = (column) => right - ((view.count - 1 - column) / Math.max(1, view.seconds - 1)) * (right - LEFT);
    const y = (value) => TOP + (1 - value / top) * (height - TOP - BOTTOM);
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    if (view.count < view.seconds) unknown(context, LEFT, view.count ? x(0) : right, width, height, view.limit && y(view.limit.value));
    grid(context, width, height, top, y);
    const base = new Array(view.count).fill(0);
    layers.forEach((layer, index) => {
      if (layer.line) return;
      area(context, view.cut[index], base, x, y, colour(layer.colour));
    });
    layers.forEach((layer, index) => {
      if (layer.line) line(context, view.cut[index], x, y, layer.model ? model(layer.model) : colour(layer.colour), layer.dash ?? []);
    });
    for (const one of view.marks) flag(context, Math.round(x(one.column)) + 0.5, height - BOTTOM);
    if (view.limit) mark(context, view.limit, y, right);
    if (cursor.pinned_ns !== null) stroke(context, x, columnOf(cursor.pinned_ns), height, "accent", 2);
    point(context, x, y, height);
  }

  function stroke(context, x, column, height, ink, wide) {
    if (column < 0 || column >= view.count) return;
    context.strokeStyle = colour(ink);
    context.lineWidth = wide;
    context.beginPath();
    context.moveTo(Math.round(x(column)) + 0.5, TOP);
    context.lineTo(Math.round(x(column)) + 0.5, height - BOTTOM);
    context.stroke();
  }

  function grid(context, width, height, top, y) {
    context.lineWidth = 1;
    context.textBaseline = "middle";
    for (const share of [0, 0.5, 1]) {
      context.strokeStyle = colour(share ? "line" : "strong-line");
      context.beginPath();
      const level = Math.round(y(top * share)) + 0.5;
      context.moveTo(LEFT, level);
      context.lineTo(width - RIGHT, level);
      context.stroke();
      context.fillStyle = colour("soft");
      context.textAlign = "right";
      context.fillText(unit(top * share), LEFT - 8, level);
    }
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    context.fillText(axis, LEFT + 4, TOP + 12);
    const step = view.seconds >= 240 ? 60 : view.seconds >= 60 ? 20 : 5;
    for (let ago = 0; ago <= view.seconds; ago += step) {
      const where = width - RIGHT - (ago / Math.max(1, view.seconds - 1)) * (width - RIGHT - LEFT);
      if (where < LEFT + 10 && ago) continue;
      context.textAlign = ago === 0 ? "right" : "center";
      context.fillText(at(view.seconds - ago, view.seconds), where, height - 4);
    }
  }

  /** Hatch the part of which nothing is known, around what is written there, and say so where there is room. */
  function unknown(context, from, to, width, height, limit) {
    const words = to - from > 90 ? "not known" : "";
    const [half, middle, grid] = [context.measureText(words).width / 2, (from + to) / 2, (height - BOTTOM + TOP) / 2];
    // Above the line of the grid; below it where the level to mark would run through the words.
    const level = limit !== null && Math.abs(limit - grid + 10) < 12 ? grid + 16 : grid - 6;
    context.save();
    context.beginPath();
    context.rect(from, TOP, to - from, height - TOP - BOTTOM);
    context.clip();
    context.beginPath();
    context.rect(0, 0, width, height);
    context.rect(LEFT, TOP, context.measureText(axis).width + 8, 16);
    if (words) context.rect(middle - half - 4, level - 11, 2 * half + 8, 15);
    context.clip("evenodd");
    context.strokeStyle = colour("line");
    context.lineWidth = 1;
    for (let at = from - height; at < to; at += 8) {
      context.beginPath();
      context.moveTo(at, height - BOTTOM);
      context.lineTo(at + height, -BOTTOM);
      context.stroke();
    }
    context.restore();
    context.fillStyle = colour("soft");
    context.textAlign = "center";
    context.fillText(words, middle, level);
  }

  /** The second that is pointed at: a line, and what the values were. */
  function point(context, x, y, height) {
    const column = cursor.at_ns === null ? -1 : columnOf(cursor.at_ns);
    if (column < 0 || column >= view.count) {
      box.hide();
      return;
    }
    stroke(context, x, column, height, "soft", 1);
    const values = layers.map((layer, index) => {
      const value = view.cut[index][column];
      return [layer.name, value === null || value === undefined ? "–" : unit(value)];
    });
    const near = view.marks.filter((one) => Math.abs(one.column - column) <= 1).map((one) => el("li", {}, `▼ ${one.text}`));
    const more = near.length > MOST_TOLD ? [el("li", {}, `and ${near.length - MOST_TOLD} more, listed below`)] : [];
    const heading = `${when(instantOf(column), view.head)}, ${at(column - view.count + 1, 0)}`;
    box.show(x(column), TOP + 40, el("b", {}, heading), pairs(values.reverse()), el("ul.told", {}, ...near.slice(0, MOST_TOLD), ...more));
  }

  function end() {
    clearTimeout(later);
    cursor.charts.delete(own);
    close();
  }

  return { set, redraw, close: end, label: name };
}

function area(context, values, base, x, y, ink) {
  if (!values.length) return;
  context.beginPath();
  context.moveTo(x(0), y(base[0]));
  for (let column = 0; column < values.length; column += 1) context.lineTo(x(column), y(base[column] + (values[column] ?? 0)));
  for (let column = values.length - 1; column >= 0; column -= 1) {
    context.lineTo(x(column), y(base[column]));
    base[column] += values[column] ?? 0;
  }
  context.fillStyle = ink;
  context.fill();
}

function line(context, values, x, y, ink, dash) {
  context.strokeStyle = ink;
  context.lineWidth = 1.75;
  context.lineJoin = "round";
  context.setLineDash(dash);
  context.beginPath();
  let drawing = false;
  values.forEach((value, column) => {
    if (value === null || value === undefined) {
      drawing = false;
      return;
    }
    if (drawing) context.lineTo(x(column), y(value));
    else context.moveTo(x(column), y(value));
    drawing = true;
  });
  context.stroke();
  context.setLineDash([]);
}

function flag(context, x, bottom) {
  context.strokeStyle = colour("warn");
  context.fillStyle = colour("warn");
  context.lineWidth = 1;
  context.setLineDash([2, 3]);
  context.beginPath();
  context.moveTo(x, TOP);
  context.lineTo(x, bottom);
  context.stroke();
  context.setLineDash([]);
  context.beginPath();
  context.moveTo(x - 4, TOP - 6);
  context.lineTo(x + 4, TOP - 6);
  context.lineTo(x, TOP + 1);
  context.fill();
}

function mark(context, limit, y, right) {
  const level = Math.round(y(limit.value)) + 0.5;
  context.strokeStyle = colour("bad");
  context.lineWidth = 1;
  context.setLineDash([5, 4]);
  context.beginPath();
  context.moveTo(LEFT, level);
  context.lineTo(right, level);
  context.stroke();
  context.setLineDash([]);
  context.fillStyle = colour("bad");
  context.textAlign = "left";
  context.fillText(limit.name, LEFT + 6, level - 5);
}
