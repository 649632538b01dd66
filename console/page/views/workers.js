// One card for each worker: what device it is, how busy, how well predicted, whether it is well.

import { el, fill, keyed, panel, put, write } from "../dom.js";
import { ago, byName, count, ns, plural, whole } from "../text.js";

const SILENCE_NS = 5e9;
const MANY = 16;
/** A worker's error is far from its kind's norm past this multiple of the norm and this excess over it. */
const FAR = 3;
const FAR_US = 1000;

function median(values) {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  return known.length ? known[Math.floor((known.length - 1) / 2)] : null;
}

/** The norms of the other workers of a worker's kind, as `Norm` of console/payloads.py has them. */
function normOf(worker, workers) {
  const peers = workers.filter((one) => one.device_kind === worker.device_kind && one !== worker && one.state !== "gone");
  return { workers: peers.length, infer_error_us: median(peers.map((one) => one.infer_error_p99_us)), load_error_us: median(peers.map((one) => one.load_error_p99_us)) };
}

/** In words, each prediction error that is far from the norm: the sign that a device is ill. */
export function errors(worker, norm) {
  return [["LOAD", worker.load_error_p99_us, norm.load_error_us], ["EXEC", worker.infer_error_p99_us, norm.infer_error_us]]
    .filter(([, own, usual]) => own !== null && usual !== null && own > FAR * usual && own - usual > FAR_US)
    .map(([name, own, usual]) => `${name} error ${ns(own * 1e3)}, the norm of its kind is ${ns(usual * 1e3)}`);
}

function meter(name) {
  const bar = el("i");
  const value = el("span");
  return { root: el("div.meter", {}, el("span", {}, name), el("b", { "aria-hidden": "true" }, bar), value), bar, value };
}

function make(worker) {
  const meters = ["EXEC", "LOAD", "Pages"].map(meter);
  const parts = {
    state: el("span.mark"), kind: el("span.tag"), exec: meters[0], load: meters[1], pages: meters[2],
    mark: el("p.soft.small"), error: el("dd"), load_error: el("dd"), resident: el("dd"), outstanding: el("dd"), trouble: el("p.trouble.small"),
  };
  const to = encodeURIComponent(worker.name);
  const card = el("li.card", {},
    el("div.row", {}, el("h3", {}, el("a", { href: `#/worker/${to}` }, worker.name)), parts.kind, parts.state),
    ...meters.map((one) => one.root),
    el("dl.facts.small", {},
      el("dt", {}, "EXEC error, p99"), parts.error,
      el("dt", {}, "LOAD error, p99"), parts.load_error,
      el("dt", {}, "Models resident"), parts.resident,
      el("dt", {}, "Outstanding"), parts.outstanding),
    parts.trouble, parts.mark,
    el("div.row.small", {},
      el("a", { href: `#/memory/${to}`, "aria-label": `Memory of ${worker.name}` }, "Memory"),
      el("a", { href: `#/schedule/${to}`, "aria-label": `Schedule of ${worker.name}` }, "Schedule")));
  card.parts = parts;
  return card;
}

function trouble(worker, head, ill) {
  if (worker.detail) return worker.detail;
  const said = [...ill];
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

function update(card, { worker, head, mark, ill }) {
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
  write(parts.load_error, worker.load_error_p99_us === null ? "–" : ns(worker.load_error_p99_us * 1000));
  put(card, "data-ill", ill.length ? "true" : null);
  put(card, "title", ill.join("; ") || null);
  write(parts.resident, `${count(worker.resident)} of ${count(worker.prepared)}`);
  put(parts.resident, "title", `${count(worker.prepared)} are prepared`);
  write(parts.outstanding, count(worker.outstanding));
  write(parts.trouble, trouble(worker, head, ill));
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
      const kinds = [...new Set(workers.map((worker) => worker.device_kind))].sort();
      const serving = workers.filter((worker) => worker.state === "serving").length;
      const each = kinds.length > 1 ? ` (${kinds.map((kind) => `${kind}: ${workers.filter((one) => one.device_kind === kind && one.state === "serving").length}`).join(", ")})` : "";
      write(sum, workers.length ? `${serving} of ${workers.length} serving${each}` : "");
      empty.hidden = workers.length > 0;
      // Many are small tiles, those in trouble first.
      cards.classList.toggle("many", workers.length > MANY);
      const norms = new Map();
      const norm = (worker) => {
        if (workers.length <= MANY) return normOf(worker, workers);
        // Of many it makes no difference that a worker is among those with which it is compared.
        if (!norms.has(worker.device_kind)) norms.set(worker.device_kind, normOf({ device_kind: worker.device_kind }, workers));
        return norms.get(worker.device_kind);
      };
      const lines = byName(workers).map((worker) => ({ worker, head, mark: marks.get(worker.name), ill: errors(worker, norm(worker)) }));
      const rank = ({ worker, ill }) => (worker.state === "gone" || worker.state === "silent" ? 0 : worker.state === "draining" ? 1 : ill.length ? 2 : 3);
      // Those of a kind stand together.
      if (kinds.length > 1) lines.sort((a, b) => kinds.indexOf(a.worker.device_kind) - kinds.indexOf(b.worker.device_kind));
      if (workers.length > MANY) lines.sort((a, b) => rank(a) - rank(b));
      keyed(cards, lines, ({ worker }) => worker.name,
        ({ worker }) => make(worker), update);
    },
  };
}
