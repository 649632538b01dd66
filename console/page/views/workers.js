// One card for each worker: what device it is, how busy, how well predicted, whether it is well.

import { el, fill, keyed, panel, put, write } from "../dom.js";
import { ago, byName, count, ns, plural, whole } from "../text.js";

const SILENCE_NS = 5e9;

function meter(name) {
  const bar = el("i");
  const value = el("span");
  return { root: el("div.meter", {}, el("span", {}, name), el("b", { "aria-hidden": "true" }, bar), value), bar, value };
}

function make(worker) {
  const meters = ["EXEC", "LOAD", "Pages"].map(meter);
  const parts = {
    state: el("span.mark"), kind: el("span.tag"), exec: meters[0], load: meters[1], pages: meters[2],
    mark: el("p.soft.small"), error: el("dd"), resident: el("dd"), outstanding: el("dd"), trouble: el("p.trouble.small"),
  };
  const to = encodeURIComponent(worker.name);
  const card = el("li.card", {},
    el("div.row", {}, el("h3", {}, worker.name), parts.kind, parts.state),
    ...meters.map((one) => one.root),
    el("dl.facts.small", {},
      el("dt", {}, "INFER error, p99"), parts.error,
      el("dt", {}, "Models resident"), parts.resident,
      el("dt", {}, "Outstanding"), parts.outstanding),
    parts.trouble, parts.mark,
    el("div.row.small", {},
      el("a", { href: `#/memory/${to}`, "aria-label": `Memory of ${worker.name}` }, "Memory"),
      el("a", { href: `#/schedule/${to}`, "aria-label": `Schedule of ${worker.name}` }, "Schedule")));
  card.parts = parts;
  return card;
}

function trouble(worker, head) {
  if (worker.detail) return worker.detail;
  const said = [];
  const quiet = worker.last_result_ns !== null && head.now_ns - worker.last_result_ns > SILENCE_NS;
  if (worker.outstanding > 0 && quiet) said.push(`last result ${ago(worker.last_result_ns, head.now_ns)}`);
  const failed = Object.entries(worker.failed);
  if (failed.length) said.push(failed.map(([what, number]) => `${what.replaceAll("_", " ")} ×${count(number)}`).join(", "));
  return said.join("; ");
}

function set(part, share, text) {
  fill(part.bar, share);
  write(part.value, text);
}

function update(card, { worker, head, mark }) {
  const { parts } = card;
  put(card, "data-is", worker.state);
  put(parts.state, "data-is", worker.state);
  write(parts.state, worker.state);
  write(parts.kind, worker.device_kind);
  set(parts.exec, worker.exec_busy, whole(worker.exec_busy));
  set(parts.load, worker.load_busy, whole(worker.load_busy));
  const used = worker.pages - worker.pages_free;
  set(parts.pages, worker.pages ? used / worker.pages : 0, whole(worker.pages ? used / worker.pages : 0));
  put(parts.pages.root, "title", `${count(used)} of ${plural(worker.pages, "page")} in use`);
  write(parts.error, worker.infer_error_p99_us === null ? "–" : ns(worker.infer_error_p99_us * 1000));
  write(parts.resident, `${count(worker.resident)} of ${count(worker.prepared)}`);
  put(parts.resident, "title", `${count(worker.prepared)} are prepared`);
  write(parts.outstanding, count(worker.outstanding));
  write(parts.trouble, trouble(worker, head));
  write(parts.mark, mark ? `${ago(mark.at_ns, head.now_ns)}: ${mark.text}` : "");
}

/** The panel of cards; `draw(workers, head, happenings)`; each shows the newest that happened to it. */
export function workerCards() {
  const sum = el("span.soft.small");
  const root = panel("Workers", sum);
  const cards = el("ul.cards");
  const empty = el("p.empty", {}, "No worker has joined. Start one with: mainspring worker");
  root.append(cards, empty);
  return {
    root,
    draw(workers, head, happenings = []) {
      const marks = new Map([...happenings].reverse().map((one) => [one.worker, one]));
      const serving = workers.filter((worker) => worker.state === "serving").length;
      write(sum, workers.length ? `${serving} of ${workers.length} serving` : "");
      empty.hidden = workers.length > 0;
      keyed(cards, byName(workers).map((worker) => ({ worker, head, mark: marks.get(worker.name) })), ({ worker }) => worker.name,
        ({ worker }) => make(worker), update);
    },
  };
}
