// What became of requests in one second that was chosen on a chart, and where to look further.

import { el, keyed, panel, put, write } from "../dom.js";
import { call } from "../link.js";
import { tint } from "../palette.js";
import { count, ms, stamp, when } from "../text.js";
import { requestTable } from "./requests.js";

const MOST = 500;
const LISTED = 100;
const SECOND_NS = 1e9;
const WORST = { lost: 0, rejected: 0, late: 1, in_time: 2, cancelled: 3 };

/** Requests by model: {name, requests, rejected, late, slowest_ms, median_ms}, the worst first. */
export function byModel(lines) {
  const found = new Map();
  for (const line of lines) {
    const one = found.get(line.model) ?? { name: line.model, requests: 0, rejected: 0, late: 0, latencies: [] };
    found.set(line.model, one);
    one.requests += 1;
    one.rejected += line.outcome === "rejected" || line.outcome === "lost";
    one.late += line.outcome === "late";
    if (line.latency_ms !== null) one.latencies.push(line.latency_ms);
  }
  return [...found.values()].map(({ latencies, ...one }) => {
    latencies.sort((a, b) => a - b);
    return { ...one, slowest_ms: latencies.at(-1) ?? null, median_ms: latencies[Math.ceil(latencies.length / 2) - 1] ?? null };
  }).sort((a, b) => b.rejected - a.rejected || b.late - a.late || (b.slowest_ms ?? 0) - (a.slowest_ms ?? 0));
}

function modelTable() {
  const body = el("tbody");
  const heads = ["Model", "Requests", "Rejected", "Late", "Median", "Slowest"];
  function make(one) {
    const swatch = el("i.swatch");
    tint(swatch, one.name);
    const cells = heads.slice(1).map(() => el("td.n"));
    const row = el("tr", {}, el("th", { scope: "row" }, swatch, el("a", { href: `#/model/${encodeURIComponent(one.name)}` }, one.name)), ...cells);
    row.values = cells;
    return row;
  }
  return {
    root: el("div.scroll.tall-list", { tabindex: "0", role: "region", "aria-label": "That second by model" },
      el("table", { "aria-label": "That second by model" }, el("thead", {}, el("tr", {}, ...heads.map((text, at) => el(at ? "th.n" : "th", { scope: "col" }, text)))), body)),
    draw(lines) {
      keyed(body, byModel(lines), (one) => one.name, make, (row, one) => {
        [count(one.requests), count(one.rejected), count(one.late), ms(one.median_ms), ms(one.slowest_ms)].forEach((text, at) => write(row.values[at], text));
        put(row.values[1], "class", one.rejected ? "n bad" : "n");
        put(row.values[2], "class", one.late ? "n warn" : "n");
      });
    },
  };
}

/** The panel; `draw(at_ns, head)` shows a second, or hides it for null; `gone()` is called when it is closed. */
export function momentPanel(gone) {
  const shut = el("button", { type: "button", onclick: gone }, "Close");
  const root = panel("The chosen second", shut);
  root.id = "moment";
  root.hidden = true;
  const heading = root.querySelector("h2");
  const said = el("p", { role: "status" });
  const schedule = el("a");
  const models = modelTable();
  const requests = requestTable("Requests of that second", "No request ended in that second, or none is remembered.");
  requests.root.classList.add("tall-list");
  root.append(el("p.row", {}, said, schedule), el("div.two.even", {}, models.root, requests.root));
  let shown = null;

  async function load(at_ns, head) {
    let found;
    try {
      const outcomes = ["rejected", "late", "lost", "in_time"].map((name) => `outcomes=${name}`).join("&");
      found = (await call(`recent?${outcomes}&limit=${MOST}&from_ns=${at_ns}&to_ns=${at_ns + SECOND_NS}`)).data;
    } catch (error) {
      write(said, error.message);
      return;
    }
    if (shown !== at_ns) return;
    const bad = found.filter((line) => WORST[line.outcome] < 2).length;
    write(said, `${count(found.length)}${found.length === MOST ? " or more" : ""} requests ended, ${count(bad)} of them rejected or late.`);
    found.sort((a, b) => WORST[a.outcome] - WORST[b.outcome] || (b.latency_ms ?? 0) - (a.latency_ms ?? 0));
    models.draw(found);
    requests.draw(found.slice(0, LISTED), head);
  }

  return {
    root,
    draw(at_ns, head) {
      root.hidden = at_ns === null;
      if (at_ns === shown || !head) return;
      shown = at_ns;
      if (at_ns === null) return;
      write(heading, `The second from ${when(at_ns, head)}`);
      put(root, "aria-label", `The second from ${when(at_ns, head)}`);
      write(said, "");
      write(schedule, "Schedule of that second");
      put(schedule, "href", `#/schedule?from=${stamp(at_ns, head)}`);
      load(at_ns, head);
    },
  };
}
