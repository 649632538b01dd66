// Executors as tracks, drawn on a canvas: what ran, what runs and what is planned.

import { colour, model as ink, on } from "../palette.js";
import { BATCH, BEGIN, EARLIEST, ID, KIND, LANE, LATEST, MODEL, PLAN_BEGIN, PLAN_END, beginOf, endOf, failed, joined, outstanding } from "./actions.js";
import { shortened, surface } from "./canvas.js";
import { drawWaiting } from "./waiting.js";
import { byName, clock } from "../text.js";

const AXIS = 24;
const NEAR_PX = 5;
const JOINED_SPAN_NS = 3e9;
const HEIGHTS = { EXEC: 26, LOAD: 17, OTHER: 13 };
const ORDER = { EXEC: 0, LOAD: 1, OTHER: 2 };

/** Where lanes stand: [{number, worker, executor, top, height, first}], and how high all of them are. */
export function arrange(lanes, shown, withOther) {
  const wanted = shown.filter((number) => withOther || lanes[number].executor !== "OTHER");
  const place = new Map();
  for (const number of byName(shown, (one) => lanes[one].worker)) place.has(lanes[number].worker) || place.set(lanes[number].worker, place.size);
  wanted.sort((a, b) => place.get(lanes[a].worker) - place.get(lanes[b].worker) || ORDER[lanes[a].executor] - ORDER[lanes[b].executor]);
  const workers = new Set(wanted.map((number) => lanes[number].worker)).size;
  const scale = workers <= 2 ? 1.7 : workers <= 5 ? 1.25 : workers <= 16 ? 1 : 0.6;
  let top = AXIS;
  let before = null;
  const rows = wanted.map((number) => {
    const { worker, executor } = lanes[number];
    top += worker === before ? 3 * Math.min(1, scale) : 10 * Math.min(1, scale);
    const row = { number, worker, executor, top, height: Math.round(HEIGHTS[executor] * scale), first: worker !== before };
    top += row.height;
    before = worker;
    return row;
  });
  return { rows, height: top + 8 };
}

/** As much of a bar's text as `wide` pixels hold: the name and the batch, or the name, or its end, by which copies differ. */
function fitting(context, name, batch, wide) {
  const measure = (text) => context.measureText(text).width;
  const whole = batch ? `${name} ${batch}` : name;
  if (measure(whole) <= wide) return whole;
  if (wide < 30 && measure(name) > wide) return measure(batch) <= wide ? batch : "";
  return shortened(context, name, wide);
}

function niceStep(span_ns, width) {
  const least = (span_ns * 110) / Math.max(110, width);
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= least);
}

/** Draws what `scene()` returns: {actions, happenings, rows, from_ns, span_ns, now_ns, head, labels, hover, selected}. */
export class Timeline {
  constructor(holder, scene) {
    holder.classList.add("plot");
    this.scene = scene;
    const made = surface(holder, (context, width, height) => this.#paint(context, width, height));
    Object.assign(this, made);
  }

  /** The action nearest to a point, or null. */
  at(x, y) {
    let found = null;
    let best = NEAR_PX;
    const scene = this.scene();
    const row = scene?.rows.find((one) => y >= one.top && y <= one.top + one.height);
    if (!row) return null;
    const wide = (this.canvas.clientWidth - scene.labels) / scene.span_ns;
    for (const action of scene.actions) {
      if (action[LANE] !== row.number) continue;
      const left = scene.labels + (beginOf(action) - scene.from_ns) * wide;
      const right = scene.labels + (endOf(action) - scene.from_ns) * wide;
      const distance = x < left ? left - x : x > right ? x - right : 0;
      if (distance < best || (distance === 0 && best === 0)) {
        best = distance;
        found = action;
      }
    }
    return found;
  }

  #paint(context, width, height) {
    const scene = this.scene();
    if (!scene) return;
    const { from_ns, span_ns, labels } = scene;
    this.left = labels;
    const inner = width - labels;
    const x = (instant) => labels + ((instant - from_ns) / span_ns) * inner;
    this.#ground(context, scene, x, width, height);
    context.save();
    context.beginPath();
    context.rect(labels, 0, inner, height);
    context.clip();
    const rows = new Map(scene.rows.map((row) => [row.number, row]));
    const close = inner / (span_ns / 1e6);
    const late = [];
    for (const action of scene.actions) {
      const row = rows.get(action[LANE]);
      if (!row || endOf(action) < from_ns || beginOf(action) > from_ns + span_ns) continue;
      if (failed(action)) late.push([action, row]);
      else this.#bar(context, action, row, x, close, scene);
    }
    for (const [action, row] of late) this.#cross(context, action, row, x(beginOf(action)));
    for (const action of [scene.selected, scene.hover]) {
      const row = action && rows.get(action[LANE]);
      if (row) this.#chosen(context, action, row, x);
    }
    if (span_ns <= JOINED_SPAN_NS) this.#joins(context, scene, rows, x);
    if (scene.waiting.length) drawWaiting(context, scene.waiting, { x, top: scene.bottom, left: labels, width, now_ns: scene.now_ns, colour });
    this.#happenings(context, scene, x);
    this.#now(context, scene, x, height);
    context.restore();
    this.#names(context, scene);
  }

  #ground(context, scene, x, width, height) {
    const { from_ns, span_ns, now_ns, labels, head } = scene;
    for (const row of scene.rows) {
      context.fillStyle = colour("sunk");
      context.globalAlpha = 0.6;
      context.fillRect(labels, row.top, width - labels, row.height);
    }
    context.globalAlpha = 1;
    if (x(now_ns) < width) {
      context.fillStyle = colour("accent-wash");
      context.globalAlpha = 0.55;
      context.fillRect(Math.max(labels, x(now_ns)), AXIS, width, height - AXIS);
      context.globalAlpha = 1;
    }
    const step = niceStep(span_ns, width - labels);
    const digits = step >= 1e9 ? 0 : step >= 1e6 ? 3 : 6;
    context.font = `11px ${this.font ?? (this.font = getComputedStyle(document.body).fontFamily)}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    context.strokeStyle = colour("line");
    context.lineWidth = 1;
    // Ticks stand at round times of day, so that they move along with what they mark.
    const shift = (head.unix_ns - head.now_ns) % step;
    for (let tick = Math.ceil((from_ns + shift) / step) * step - shift; tick <= from_ns + span_ns; tick += step) {
      const where = Math.round(x(tick)) + 0.5;
      if (where < labels) continue;
      context.beginPath();
      context.moveTo(where, AXIS - 4);
      context.lineTo(where, height);
      context.stroke();
      if (where < labels + 34 || where > width - 34) continue;
      context.fillStyle = colour("soft");
      context.fillText(clock(tick + step / 1e4, head, digits), where, 10);
    }
  }

  #bar(context, action, row, x, close, scene) {
    const left = x(beginOf(action));
    const right = Math.max(left + 1, x(endOf(action)));
    const { top, height } = row;
    const wide = right - left;
    if (outstanding(action)) {
      context.fillStyle = ink(action[MODEL], 0.35);
      context.fillRect(left, top, wide, height);
      const done = Math.min(right, x(scene.now_ns)) - left;
      if (done > 0) {
        context.fillStyle = ink(action[MODEL], 0.7);
        context.fillRect(left, top, done, height);
      }
      if (wide > 3) {
        context.strokeStyle = colour("ink");
        context.lineWidth = 1;
        context.setLineDash([3, 3]);
        context.strokeRect(left + 0.5, top + 0.5, wide - 1, height - 1);
        context.setLineDash([]);
      }
    } else {
      context.fillStyle = ink(action[MODEL]);
      context.fillRect(left, top, wide > 2 ? wide - 0.5 : wide, height);
      if (close > 2 && action[PLAN_END] > action[PLAN_BEGIN]) {
        context.fillStyle = colour("ink");
        context.fillRect(x(action[PLAN_BEGIN]), top + height - 3, Math.max(1, x(action[PLAN_END]) - x(action[PLAN_BEGIN])), 1.5);
      }
    }
    if (close > 4 || outstanding(action)) this.#window(context, action, row, x);
    if (wide > 15) this.#label(context, action, left, wide, row);
  }

  #label(context, action, left, wide, row) {
    const batch = action[KIND] === "INFER" ? `×${action[BATCH]}` : action[KIND] === "OPEN" ? "open" : "";
    const text = fitting(context, action[MODEL], batch, wide - 8);
    if (!text || row.height < 12) return;
    context.save();
    context.beginPath();
    context.rect(Math.max(left, this.left), row.top, wide - 2, row.height);
    context.clip();
    context.fillStyle = outstanding(action) ? colour("ink") : on(action[MODEL]);
    context.textAlign = "left";
    context.fillText(text, Math.max(left, this.left) + 4, row.top + row.height / 2);
    context.restore();
  }

  /** The time in which it may begin, as brackets over the bar. */
  #window(context, action, row, x) {
    const left = x(action[EARLIEST]);
    const right = x(action[LATEST]);
    if (!(right - left > 3) || action[EARLIEST] <= 0) return;
    context.strokeStyle = colour("soft");
    context.lineWidth = 1;
    context.beginPath();
    const top = row.top - 1.5;
    context.moveTo(left, top + 5);
    context.lineTo(left, top);
    context.lineTo(right, top);
    context.lineTo(right, top + 5);
    context.stroke();
  }

  /** What was refused or failed: a cross in a diamond, whatever its colour. */
  #cross(context, action, row, at) {
    const middle = row.top + row.height / 2;
    const size = Math.min(7, row.height / 2);
    context.fillStyle = colour("panel");
    context.strokeStyle = colour("bad");
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(at, middle - size);
    context.lineTo(at + size, middle);
    context.lineTo(at, middle + size);
    context.lineTo(at - size, middle);
    context.closePath();
    context.fill();
    context.stroke();
    const arm = size * 0.36;
    context.beginPath();
    context.moveTo(at - arm, middle - arm);
    context.lineTo(at + arm, middle + arm);
    context.moveTo(at + arm, middle - arm);
    context.lineTo(at - arm, middle + arm);
    context.stroke();
  }

  #chosen(context, action, row, x) {
    const left = x(beginOf(action));
    const wide = Math.max(3, x(endOf(action)) - left);
    context.strokeStyle = colour("ink");
    context.lineWidth = 2;
    if (!failed(action)) context.strokeRect(left - 1, row.top - 1, wide + 2, row.height + 2);
    this.#window(context, action, row, x);
    if (action[BEGIN] !== null) {
      context.fillStyle = colour("ink");
      context.fillRect(x(action[PLAN_BEGIN]), row.top + row.height + 1, Math.max(1, x(action[PLAN_END]) - x(action[PLAN_BEGIN])), 2);
    }
  }

  /** A LOAD and the first INFER that it made possible: a line from the end of one to the beginning of the other. */
  #joins(context, scene, rows, x) {
    const marked = new Set([scene.selected, scene.hover].filter(Boolean).map((action) => action[ID]));
    const shown = scene.actions.filter((action) => rows.has(action[LANE]) && endOf(action) >= scene.from_ns && beginOf(action) <= scene.from_ns + scene.span_ns);
    for (const [load, infer] of joined(shown, (action) => rows.get(action[LANE]).worker)) {
      const [from, to] = [rows.get(load[LANE]), rows.get(infer[LANE])];
      const strong = marked.has(load[ID]) || marked.has(infer[ID]);
      context.strokeStyle = context.fillStyle = colour(strong ? "ink" : "soft");
      context.lineWidth = strong ? 2 : 1;
      context.beginPath();
      context.moveTo(x(endOf(load)), from.top + from.height / 2);
      context.lineTo(x(endOf(load)), from.top - 2);
      context.lineTo(x(beginOf(infer)), to.top + to.height + 1);
      context.lineTo(x(beginOf(infer)), to.top + to.height / 2);
      context.stroke();
      for (const [at, row] of [[x(endOf(load)), from], [x(beginOf(infer)), to]]) {
        context.beginPath();
        context.arc(at, row.top + row.height / 2, strong ? 3.5 : 2, 0, 2 * Math.PI);
        context.fill();
      }
    }
  }

  /** The mark of something that happened near a point, or null. */
  markAt(x, y) {
    const scene = this.scene();
    if (!scene) return null;
    const wide = (this.canvas.clientWidth - scene.labels) / scene.span_ns;
    return scene.happenings.find(({ at_ns, worker }) => {
      const own = worker ? scene.rows.filter((row) => row.worker === worker) : scene.rows;
      const inside = own.length && y >= own[0].top - 6 && y <= own.at(-1).top + own.at(-1).height + 3;
      return inside && Math.abs(scene.labels + (at_ns - scene.from_ns) * wide - x) <= NEAR_PX;
    }) ?? null;
  }

  /** What happened to a worker, across its lanes; to the controller, across all. */
  #happenings(context, { happenings, rows, from_ns, span_ns }, x) {
    context.strokeStyle = context.fillStyle = colour("warn");
    context.lineWidth = 2;
    for (const { at_ns, worker } of happenings) {
      if (at_ns < from_ns || at_ns > from_ns + span_ns) continue;
      const own = worker ? rows.filter((row) => row.worker === worker) : rows;
      if (!own.length) continue;
      const where = Math.round(x(at_ns));
      const top = own[0].top - 3;
      const last = own[own.length - 1];
      context.beginPath();
      context.moveTo(where, top);
      context.lineTo(where, last.top + last.height + 2);
      context.stroke();
      context.beginPath();
      context.moveTo(where - 5, top - 2);
      context.lineTo(where + 5, top - 2);
      context.lineTo(where, top + 5);
      context.fill();
    }
  }

  #now(context, { now_ns }, x, height) {
    const where = Math.round(x(now_ns)) + 0.5;
    context.strokeStyle = colour("accent");
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(where, AXIS - 6);
    context.lineTo(where, height);
    context.stroke();
  }

  #names(context, { rows, labels, waiting, bottom }) {
    context.save();
    if (waiting.length) {
      context.font = `600 ${labels > 90 ? 12 : 10}px ${this.font}`;
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillStyle = colour("ink");
      context.fillText("waiting", 0, bottom + 19);
    }
    context.beginPath();
    context.rect(0, 0, labels - 6, 1e5);
    context.clip();
    context.textAlign = "left";
    context.textBaseline = "middle";
    const size = rows[0]?.height < 20 ? 9 : labels > 90 ? 12 : 10;
    for (const row of rows) {
      const middle = row.top + row.height / 2;
      const family = this.font;
      if (labels > 90) {
        context.font = `600 ${size}px ${family}`;
        context.fillStyle = colour("ink");
        if (row.first) context.fillText(row.worker, 0, middle);
        context.font = `${Math.min(10, size)}px ${family}`;
        context.fillStyle = colour("soft");
        context.textAlign = "right";
        context.fillText(row.executor, labels - 10, middle);
        context.textAlign = "left";
      } else {
        context.font = `${row.first ? "600 " : ""}${size}px ${family}`;
        context.fillStyle = colour(row.first ? "ink" : "soft");
        context.fillText(row.first ? row.worker : row.executor, 0, middle);
      }
    }
    context.restore();
  }
}

/** The actions in sight in the order of their beginnings, those of `rows` alone. */
export function inSight(actions, rows, from_ns, to_ns) {
  const lanes = new Set(rows.map((row) => row.number));
  const found = [];
  for (const action of actions) {
    if (lanes.has(action[LANE]) && endOf(action) >= from_ns && beginOf(action) <= to_ns) found.push(action);
  }
  return found.sort((a, b) => beginOf(a) - beginOf(b) || a[ID] - b[ID]);
}
