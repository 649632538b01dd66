// A list of requests, each leading to its explanation.

import { el, keyed, put, write } from "../dom.js";
import { ago, ms, words } from "../text.js";

/** A table of `RequestLine`s; `draw(lines, head)` brings it up to date. `withModel` false leaves models out. */
export function requestTable(label, nothing, withModel = true) {
  const body = el("tbody", { role: "rowgroup" });
  const heads = ["Outcome", "Request", withModel ? "Model" : null, "Why"].filter(Boolean).map((text) => el("th", { scope: "col", role: "columnheader" }, text));
  const table = el("table.requests.stacked", { role: "table", "aria-label": label },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...heads, el("th.n", { scope: "col", role: "columnheader" }, "Latency"), el("th.n", { scope: "col", role: "columnheader" }, "Arrived"))), body);
  const empty = el("p.empty", { hidden: true }, nothing);
  const root = el("div.scroll", { tabindex: "0", role: "region", "aria-label": label }, table, empty);
  let order = "";

  function make(line) {
    const parts = {
      outcome: el("span.mark"),
      link: el("a.mono", { href: `#/request/${line.id}` }, line.id),
      model: el("a", { href: `#/model/${encodeURIComponent(line.model)}` }, line.model),
      why: el("span"),
      latency: el("td.n", { role: "cell" }),
      when: el("td.n.soft", { role: "cell" }),
    };
    const row = el("tr", { role: "row" }, el("td", { role: "cell" }, parts.outcome), el("td", { role: "cell" }, parts.link),
      withModel ? el("td", { role: "cell" }, parts.model) : null, el("td.why", { role: "cell" }, parts.why), parts.latency, parts.when);
    row.parts = parts;
    return row;
  }

  function update(row, { line, head }) {
    put(row.parts.outcome, "data-is", line.outcome);
    write(row.parts.outcome, words(line.outcome));
    const why = line.detail || words(line.reason);
    write(row.parts.why, why);
    put(row.parts.why, "title", line.reason || null);
    write(row.parts.latency, line.latency_ms === null ? "" : ms(line.latency_ms));
    write(row.parts.when, ago(line.arrived_ns, head.now_ns));
  }

  return {
    root,
    draw(lines, head) {
      const now = lines.map((line) => line.id + line.outcome).join();
      const second = Math.floor(head.now_ns / 1e9);
      // Ages are brought up to date once a second; rows when there are others.
      if (order === `${now} ${second}`) return;
      order = `${now} ${second}`;
      table.hidden = lines.length === 0;
      empty.hidden = lines.length > 0;
      keyed(body, lines.map((line) => ({ line, head })), ({ line }) => line.id, ({ line }) => make(line), update);
    },
  };
}
