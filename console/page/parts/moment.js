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

function modelTable(choose) {
  const body = el("tbody");
  const heads = ["Model", "Requests", "Rejected", "Late", "Median", "Slowest"];
  function make(one) {
    const swatch = el("i.swatch");
    tint(swatch, one.name);
    const cells = heads.slice(1).map(() => el("td.n"));
    const name = el("button.textual", { type: "button", "aria-pressed": "false", onclick: () => choose(one.name) }, one.name);
    const row = el("tr", {}, el("th", { scope: "row" }, swatch, name), ...cells);
    row.values = cells;
    row.name = name;
    return row;
  }
  return {
    root: el("div.scroll.tall-list", { tabindex: "0", role: "region", "aria-label": "That second by model" },
      el("table", { "aria-label": "That second by model" }, el("thead", {}, el("tr", {}, ...heads.map((text, at) => el(at ? "th.n" : "th", { scope: "col" }, text)))), body)),
    /** Show these requests by model; `chosen` is the one that the list beside is of. */
    draw(lines, chosen) {
      keyed(body, byModel(lines), (one) => one.name, make, (row, one) => {
        [count(one.requests), count(one.rejected), count(one.late), ms(one.median_ms), ms(one.slowest_ms)].forEach((text, at) => write(row.values[at], text));
        put(row.name, "aria-pressed", String(one.name === chosen));
        put(row.values[1], "class", one.rejected ? "n bad" : "n");
        put(row.values[2], "class", one.late ? "n warn" : "n");
      });
    },
  };
}

const OUTCOMES = ["rejected", "late", "lost", "in_time"].map((name) => `outcomes=${name}`).join("&");

/** Why nothing can be told of a second yet, or at all; empty if it can. `settled`: whether the run stands where the address says. */
export function untold(at_ns, head, settled) {
  if (!settled || head.state === "catching_up") return "The run is being read up to that second …";
  if (at_ns > head.now_ns) return "What is shown ends before that second.";
  if (at_ns + SECOND_NS <= head.first_ns) return "Nothing is remembered of that second.";
  return "";
}

/**
 * The panel; `draw(at_ns, head, settled)` shows a second, as soon as it can be told of, or hides the panel for null. `gone()` is
 * called when it is closed, `filtered(name)` when only one model's requests are looked at (null: all models'); `model` is the first one.
 */
export function momentPanel(gone, filtered, model = null) {
  const shut = el("button", { type: "button", onclick: gone }, "Close");
  const root = panel("The chosen second", shut);
  root.id = "moment";
  root.hidden = true;
  const heading = root.querySelector("h2");
  const said = el("p", { role: "status" });
  const schedule = el("a");
  const models = modelTable((name) => filter(name === model ? null : name));
  const requests = requestTable("Requests of that second", "No request ended in that second.");
  requests.root.classList.add("tall-list");
  const page = el("a");
  const only = el("p.row", { hidden: true }, el("span", {}, "Only requests for ", page, "."), el("button", { type: "button", onclick: () => filter(null) }, "All models"));
  const tables = el("div.two.even", {}, models.root, el("div", {}, only, requests.root));
  root.append(el("p.row", {}, said, schedule), tables);
  let shown = null;
  let told = false;
  let all = [];
  let last = null;

  const asked = (at_ns, more = "") => call(`recent?${OUTCOMES}&limit=${MOST}&from_ns=${at_ns}&to_ns=${at_ns + SECOND_NS}${more}`);

  async function load(at_ns) {
    let answer;
    try {
      answer = await asked(at_ns);
    } catch (error) {
      write(said, error.message);
      return;
    }
    if (shown !== at_ns) return;
    // The run may have been sought elsewhere meanwhile: then it says nothing of that second.
    if (untold(at_ns, answer.head, true)) {
      told = false;
      return;
    }
    all = answer.data;
    tables.hidden = false;
    const bad = all.filter((line) => WORST[line.outcome] < 2).length;
    write(said, `${count(all.length)}${all.length === MOST ? " or more" : ""} requests ended, ${count(bad)} of them rejected or late.`);
    list();
  }

  /** List the requests: of one model all that there are, though of all models only the newest came. */
  async function list() {
    const [at_ns, name] = [shown, model];
    let lines = all.filter((line) => name === null || line.model === name);
    if (name !== null && all.length === MOST) {
      try {
        lines = (await asked(at_ns, `&model=${encodeURIComponent(name)}`)).data;
      } catch (error) {
        write(said, error.message);
        return;
      }
      if (shown !== at_ns || model !== name) return;
    }
    lines.sort((a, b) => WORST[a.outcome] - WORST[b.outcome] || (b.latency_ms ?? 0) - (a.latency_ms ?? 0));
    only.hidden = name === null;
    write(page, name ?? "");
    put(page, "href", `#/model/${encodeURIComponent(name ?? "")}`);
    models.draw(all, name);
    requests.draw(lines.slice(0, LISTED), last);
  }

  function filter(name) {
    model = name;
    filtered(name);
    list();
  }

  return {
    root,
    draw(at_ns, head, settled) {
      root.hidden = at_ns === null;
      if (!head) return;
      last = head;
      if (at_ns !== shown) {
        if (shown !== null && model !== null) filtered((model = null));
        shown = at_ns;
        told = false;
        tables.hidden = true;
      }
      if (at_ns === null || told) return;
      write(heading, `The second from ${when(at_ns, head)}`);
      put(root, "aria-label", `The second from ${when(at_ns, head)}`);
      write(schedule, "Schedule of that second");
      put(schedule, "href", `#/schedule?from=${stamp(at_ns, head)}`);
      const why = untold(at_ns, head, settled);
      write(said, why);
      told = !why;
      if (told) load(at_ns);
    },
  };
}
