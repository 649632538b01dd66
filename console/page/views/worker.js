// One worker: is it well? How wrong predictions are there beside the others of its kind, what happened to it.

import { el, keyed, panel, put, write } from "../dom.js";
import { chart, legend } from "../parts/chart.js";
import { Cursor } from "../parts/cursor.js";
import { happeningPanel } from "../parts/happenings.js";
import { COMMANDS, commandPanel } from "../parts/commands.js";
import { tint } from "../palette.js";
import { bytes, count, ms, ns, plural, stamp, whole, words } from "../text.js";
import { errors } from "./workers.js";

const SECONDS = 300;

function actions(name) {
  let drain = null;
  const made = commandPanel((act) => {
    drain = el("button", { type: "button", onclick: () => act(COMMANDS[drain.dataset.command](name)) });
    return [drain];
  });
  return {
    root: made.root,
    draw(state, head) {
      const command = state === "draining" ? "resume" : "drain";
      put(drain, "data-command", command);
      put(drain, "data-off", String(state === "gone"));
      write(drain, command === "resume" ? "Resume" : "Drain");
      made.draw(head);
    },
  };
}

/** A chart of how much longer actions took than was predicted, second by second, beside the norm. */
function errorPanel(kind, key, cursor) {
  const said = el("p");
  const holder = el("div.tall");
  const root = panel(`${kind}: longer than predicted`);
  root.append(said, holder);
  const plot = chart(holder, {
    cursor,
    axis: "the worst of each second, ms",
    label: `How much longer ${kind} took than was predicted, each second`,
    unit: ms,
    least: 0.1,
    layers: [{ name: "worst", colour: "accent", line: true, pick: (series) => series[key].map((value) => (value === null ? null : Math.max(0, value))) }],
  });
  return {
    root,
    close: plot.close,
    draw(data, head, own_us, norm_us) {
      const beside = norm_us === null ? "no other worker of its kind to compare with" : `the norm of its kind is ${ns(norm_us * 1e3)}`;
      write(said, own_us === null ? "Nothing ended yet." : `p99 of the error is ${ns(own_us * 1e3)}; ${beside}.`);
      plot.set(data, SECONDS, head, norm_us === null ? null : { value: norm_us / 1e3, name: "norm of its kind" }, data.happenings);
    },
  };
}

/** A chart of what it did in each second; `layers` are lines over `WorkerSeries`. */
function coursePanel(title, cursor, axis, unit, layers) {
  const holder = el("div.tall");
  const lines = layers.map(([name, colour, key]) => ({ name, colour, line: true, pick: (series) => series[key] }));
  const root = panel(title, legend(lines));
  root.append(holder);
  const plot = chart(holder, { cursor, axis, label: `${title}, each second`, unit, layers: lines });
  return { root, close: plot.close, draw: (data, head) => plot.set(data.series, SECONDS, head, null, data.happenings) };
}

/** That nothing is ill with a worker, once something has ended on it and on others to compare it with. */
function asPredicted(picture, norm) {
  if (!norm.workers || (picture.infer_error_p99_us === null && picture.load_error_p99_us === null)) return "";
  return `As well predicted as the other ${norm.workers === 1 ? "worker" : plural(norm.workers, "worker")} of its kind.`;
}

/** What its GPU says of itself, or what limits its host; `draw(null)` where it has none, or of a recorded run, which has no word of it. */
export function gpuPanel() {
  const names = ["SM clock", "Held down by", "Temperature", "Power", "Memory taken", "Xid errors", "Uncorrectable errors", "Remapped rows", "Without graph"];
  const values = names.map(() => el("dd"));
  const places = names.map((text, at) => el("div", {}, el("dt", {}, text), values[at]));
  const notes = el("ul.notes");
  const root = panel("Device");
  root.append(el("dl.figures.gpu", {}, ...places), notes);
  return {
    root,
    draw(gpu) {
      root.hidden = gpu === null;
      if (gpu === null) return;
      const known = (value, text) => (value === null ? null : text(value));
      const shown = [
        known(gpu.clock_mhz, (mhz) => `${count(Math.round(mhz))} MHz`),
        gpu.clock_mhz === null ? null : gpu.throttled.map((one) => words(one)).join(", ") || "nothing",
        known(gpu.temperature_c, (celsius) => `${Math.round(celsius)} °C`),
        known(gpu.power_w, (watts) => `${Math.round(watts)} W`),
        known(gpu.memory_used_bytes, bytes),
        ...[gpu.xid_errors, gpu.uncorrected_errors, gpu.remapped_rows, gpu.without_graph].map((value) => known(value, count)),
      ];
      shown.forEach((text, at) => {
        places[at].hidden = text === null;
        write(values[at], text ?? "");
      });
      notes.hidden = gpu.notes.length === 0;
      keyed(notes, gpu.notes, (one) => one, (one) => el("li", {}, one), () => {});
    },
  };
}

/** Its clock beside the controller's, by how much that may be wrong, and what it gains. */
function clockOf(clock) {
  if (clock === null) return "–";
  const signed = (value, digits) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
  return `${signed(clock.offset_ms, 3)} ms ± ${ns(clock.error_us * 1e3)}, ${signed(clock.rate_ppm, 1)} ppm`;
}

/** The view of the worker called `name`. */
export function worker(root, name, app) {
  const to = encodeURIComponent(name);
  let head = null;
  const cursor = new Cursor((at_ns) => at_ns !== null && app.go(`#/schedule/${to}?from=${stamp(at_ns, head)}`));
  const state = el("span.mark");
  const kind = el("span.tag");
  const verdict = el("p.summary", { role: "status" });
  const names = ["EXEC", "LOAD", "Pages", "Models resident", "Outstanding", "Did not end well", "Clock", "Runs"];
  const values = names.map(() => el("dd"));
  const figures = el("dl.figures", {}, ...names.map((text, at) => el("div", {}, el("dt", {}, text), values[at])));
  const infers = errorPanel("EXEC", "infer_worst_ms", cursor);
  const loads = errorPanel("LOAD", "load_worst_ms", cursor);
  const busy = coursePanel("Busy", cursor, "share of each second", whole, [["EXEC", "accent", "exec_busy"], ["LOAD", "chart-warn", "load_busy"]]);
  const batches = coursePanel("Batches", cursor, "each second", (value) => `${count(value)}/s`, [["batches", "accent", "batches"], ["rows", "soft", "rows"]]);
  const happened = happeningPanel("What happened to it");
  const gpu = gpuPanel();
  const operate = actions(name);
  const resident = el("ul.chips");
  const none = el("p.empty", {}, "Nothing is resident there.");
  const residents = panel("Models resident");
  residents.append(resident, none);
  root.append(el("nav.crumbs", { "aria-label": "Where this is" }, el("a", { href: "#/cluster" }, "Cluster")),
    el("div.head", {}, el("h1.break", {}, name), kind, state,
      el("span.end.row", {}, el("a", { href: `#/memory/${to}` }, "Memory"), el("a", { href: `#/schedule/${to}` }, "Schedule"))),
    verdict, el("section.panel", { "aria-label": "Now" }, figures), gpu.root, el("div.two.even", {}, busy.root, batches.root), el("div.two.even", {}, loads.root, infers.root), operate.root, happened.root, residents);

  return {
    title: name,
    ask: { show: "worker", params: { name }, every_ms: 500 },
    draw(data, now) {
      head = now;
      const { picture, norm } = data;
      put(state, "data-is", picture.state);
      write(state, picture.state);
      write(kind, picture.device_kind);
      const ill = errors(picture, norm);
      write(verdict, [picture.detail, ...ill].filter(Boolean).join("; ") || asPredicted(picture, norm));
      put(verdict, "class", ill.length ? "summary warn" : "summary");
      const used = picture.pages - picture.pages_free;
      const failed = Object.entries(picture.failed).map(([what, number]) => `${what.replaceAll("_", " ")} ×${count(number)}`).join(", ");
      [whole(picture.exec_busy), whole(picture.load_busy), `${count(used)} of ${count(picture.pages)}`, `${count(picture.resident)} of ${count(picture.prepared)}`, count(picture.outstanding), failed || "–", clockOf(picture.clock), picture.targets.join(", ") || "any artifact"]
        .forEach((text, at) => write(values[at], text));
      gpu.draw(data.gpu);
      busy.draw(data, now);
      batches.draw(data, now);
      infers.draw(data, now, picture.infer_error_p99_us, norm.infer_error_us);
      loads.draw(data, now, picture.load_error_p99_us, norm.load_error_us);
      happened.draw(data.happenings, now);
      operate.draw(picture.state, now);
      none.hidden = data.resident.length > 0;
      keyed(resident, data.resident, (one) => one, (one) => {
        const swatch = el("i.swatch");
        tint(swatch, one);
        return el("li", {}, swatch, el("a", { href: `#/model/${encodeURIComponent(one)}` }, one));
      }, () => {});
    },
    close() {
      busy.close();
      batches.close();
      infers.close();
      loads.close();
    },
  };
}
