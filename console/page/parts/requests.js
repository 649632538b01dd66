// A list of requests, each leading to its explanation.

import { el, keyed, put, write } from "../dom.js";
import { ago, ms, words } from "../text.js";

/** What is the same of requests of one burst: equal but for their numbers and instants. */
function burstOf(line) {
  return [line.outcome, line.model, line.reason, line.detail.replace(/[+-]?\d[\d.,]*/g, "#")].join("\n");
}

const BURSTS = new Set(["rejected", "late", "lost"]);

/** Neighbours of one burst as one: [{line, lines}], each with the newest of them as its `line`. */
export function folded(lines) {
  const found = [];
  for (const line of lines) {
    const last = found.at(-1);
    if (last && BURSTS.has(line.outcome) && burstOf(last.line) === burstOf(line)) last.lines.push(line);
    else found.push({ line, lines: [line] });
  }
  return found;
}

/** A table of `RequestLine`s, bursts folded; `draw(lines, head)` brings it up to date. `withModel` false leaves models out. */
export function requestTable(label, nothing, withModel = true) {
  const body = el("tbody", { role: "rowgroup" });
  const heads = ["Outcome", "Request", withModel ? "Model" : null, "Why"].filter(Boolean).map((text) => el("th", { scope: "col", role: "columnheader" }, text));
  const table = el("table.requests.stacked", { role: "table", "aria-label": label },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...heads, el("th.n", { scope: "col", role: "columnheader" }, "Latency"), el("th.n", { scope: "col", role: "columnheader" }, "Arrived"))), body);
  const empty = el("p.empty", { hidden: true }, nothing);
  const root = el("div.scroll", { tabindex: "0", role: "region", "aria-label": label }, table, empty);
  const open = new Set();
  let order = "";
  let drawn = null;

  function make(line) {
    const parts = {
      outcome: el("span.mark"),
      times: el("button.textual", { type: "button", hidden: true, "aria-expanded": "false", onclick: () => unfold(line.id) }),
      link: el("a.mono", { href: `#/request/${line.id}` }, line.id),
      model: el("a", { href: `#/model/${encodeURIComponent(line.model)}` }, line.model),
      why: el("span"),
      latency: el("td.n", { role: "cell" }),
      when: el("td.n.soft", { role: "cell" }),
    };
    const row = el("tr", { role: "row" }, el("td", { role: "cell" }, parts.outcome, " ", parts.times), el("td", { role: "cell" }, parts.link),
      withModel ? el("td", { role: "cell" }, parts.model) : null, el("td.why", { role: "cell" }, parts.why), parts.latency, parts.when);
    row.parts = parts;
    return row;
  }

  /** Show each request of a burst, or the burst as one again. */
  function unfold(id) {
    if (!open.delete(id)) open.add(id);
    order = "";
    draw(drawn.lines, drawn.head);
  }

  function update(row, { line, lines, head }) {
    const several = lines.length > 1;
    row.parts.times.hidden = !several;
    if (several) {
      write(row.parts.times, `× ${lines.length}`);
      put(row.parts.times, "aria-expanded", String(open.has(line.id)));
      put(row.parts.times, "title", `${lines.length} requests of one burst; click to see each`);
    }
    put(row.parts.outcome, "data-is", line.outcome);
    write(row.parts.outcome, words(line.outcome));
    const why = line.detail || words(line.reason);
    write(row.parts.why, why);
    put(row.parts.why, "title", line.reason || null);
    write(row.parts.latency, line.latency_ms === null ? "" : ms(line.latency_ms));
    write(row.parts.when, ago(line.arrived_ns, head.now_ns));
  }

  function draw(lines, head) {
    drawn = { lines, head };
    const now = lines.map((line) => line.id + line.outcome).join();
    const second = Math.floor(head.now_ns / 1e9);
    // Ages are brought up to date once a second; rows when there are others.
    if (order === `${now} ${second}`) return;
    order = `${now} ${second}`;
    table.hidden = lines.length === 0;
    empty.hidden = lines.length > 0;
    const rows = folded(lines).flatMap((one) => (open.has(one.line.id)
      ? one.lines.map((line, at) => ({ line, lines: at ? [line] : one.lines, head })) : [{ ...one, head }]));
    keyed(body, rows, ({ line }) => line.id, ({ line }) => make(line), update);
  }

  return { root, draw };
}
