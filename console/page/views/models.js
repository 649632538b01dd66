// The table of all models: only the rows in sight are asked for and exist.

import { el, put, write } from "../dom.js";
import { tint } from "../palette.js";
import { UNSEEN, count, ms, percent, span } from "../text.js";

const ROW = 37;
const SPARE = 12;
const SETTLED_MS = 120;
const COLUMNS = [
  ["name", "Model", ""], ["resident", "Resident on", ""], ["queued", "Queue", "n"], ["demand", "Requests/s", "n"],
  ["in_time", "In time", "n"], ["late", "Late", "n"], ["rejected", "Rejected", "n"], ["cold", "Cold", "n"],
  ["", "p99", "n"], ["loads", "Loads/min", "n"], ["evictions", "Evicted/min", "n"],
  ["pages", "Pages", "n"], ["last_load", "Last load", "n"], ["", "INFER", "n"],
];
const FALLING = new Set(["resident", "queued", "demand", "in_time", "late", "rejected", "cold", "pages", "last_load", "loads", "evictions"]);

/** How long one row takes; all sizes appear where the pointer is. */
function infer(line) {
  const sizes = Object.keys(line.infer_ms).map(Number).sort((a, b) => a - b);
  return { text: sizes.length ? ms(line.infer_ms[sizes[0]]) : "–", all: sizes.map((size) => `batch of ${size}: ${ms(line.infer_ms[size])}`).join("\n") };
}

function placed(line) {
  const parts = [];
  if (line.resident_on.length) parts.push(line.resident_on.length > 1 ? `${line.resident_on.length} workers` : line.resident_on[0]);
  if (line.loading_on.length) parts.push(`${line.loading_on.length} loading`);
  if (!parts.length) parts.push(line.prepared_on ? "nowhere" : "not prepared");
  if (line.failed_on) parts.push(`${line.failed_on} failed`);
  return parts.join(", ");
}

function newRow() {
  const cells = COLUMNS.map(([, , kind], at) => el(at === 0 ? "th" : "td", { class: kind || null, scope: at === 0 ? "row" : null }));
  const swatch = el("i.swatch");
  const link = el("a.clip");
  const pin = el("span.tag", { hidden: true }, "pinned");
  const flag = el("span.tag.warn", { hidden: true, title: "Evicted again and again over the last minutes, and loaded again nearly each time" }, "thrashes");
  const uneven = el("span.tag.warn", { hidden: true, title: "The 99th percentile of its durations passed three times their median" }, "erratic");
  cells[0].append(el("div.named", {}, swatch, link, pin, flag, uneven));
  const row = el("tr", {}, ...cells);
  Object.assign(row, { cells_: cells, swatch, link, pin, flag, uneven });
  return row;
}

function writeRow(row, line, position, now_ns) {
  put(row, "aria-rowindex", position + 2);
  row.hidden = false;
  write(row.link, line.name);
  put(row.link, "title", line.name);
  put(row.link, "href", `#/model/${encodeURIComponent(line.name)}`);
  tint(row.swatch, line.name);
  row.pin.hidden = !line.pinned;
  row.flag.hidden = !line.thrashes;
  row.uneven.hidden = !line.erratic;
  const takes = infer(line);
  const all = line.in_time + line.late + line.rejected;
  const texts = [null, placed(line), count(line.queued), count(line.demand_rps), count(line.in_time),
    count(line.late), count(line.rejected), count(line.cold), ms(line.p99_ms), count(line.loads_pm), count(line.evictions_pm),
    count(line.pages), line.last_load_ns === null ? UNSEEN : span(now_ns - line.last_load_ns), takes.text];
  for (let at = 1; at < texts.length; at += 1) write(row.cells_[at], texts[at]);
  put(row.cells_[1], "title", [...line.resident_on, ...line.loading_on.map((worker) => `loading on ${worker}`)].join(", ") || null);
  put(row.cells_.at(-1), "title", takes.all || null);
  put(row.cells_[4], "title", all ? `${percent(line.in_time / all)} of ${count(all)}` : null);
  put(row.cells_[10], "class", line.thrashes ? "n warn" : "n");
  put(row.cells_[5], "class", line.late ? "n warn" : "n");
  put(row.cells_[6], "class", line.rejected ? "n bad" : "n");
}

/** The view; the address keeps search, column and order. */
export function models(root, rest, app, params) {
  const state = {
    search: params.get("search") ?? "",
    sort: COLUMNS.some(([name]) => name && name === params.get("sort")) ? params.get("sort") : "name",
    descending: params.get("order") === "falling",
  };
  const search = el("input.wide", { type: "search", placeholder: "Search names", "aria-label": "Search models by name", value: state.search, spellcheck: "false" });
  const total = el("span.soft", { role: "status" });
  const heads = COLUMNS.map(([name, text, kind]) => el("th", { scope: "col", class: kind || null },
    name ? el("button.sort", { type: "button", onclick: () => order(name) }, text) : text));
  const above = el("tr.space", { "aria-hidden": "true" }, el("td", { colspan: String(COLUMNS.length) }));
  const below = el("tr.space", { "aria-hidden": "true" }, el("td", { colspan: String(COLUMNS.length) }));
  const body = el("tbody", {}, above, below);
  const table = el("table.models", { "aria-label": "Models" }, el("thead", {}, el("tr", { "aria-rowindex": "1" }, ...heads)), body);
  const empty = el("p.empty", { hidden: true });
  const scroller = el("div.virtual", { tabindex: "0", role: "region", "aria-label": "Models, scrollable" }, table, empty);
  const rows = [];
  root.append(el("div.head", {}, el("h1", {}, "Models"), total, el("span.end", {}, search)), el("section.panel.flush", {}, scroller));
  let last = null;
  let due = 0;

  function query() {
    const first = Math.max(0, Math.floor(scroller.scrollTop / ROW) - SPARE);
    const limit = Math.min(200, Math.ceil((scroller.clientHeight || 700) / ROW) + 2 * SPARE);
    return { ...state, offset: first, limit };
  }

  function ask(now = false) {
    clearTimeout(due);
    due = setTimeout(() => {
      const next = query();
      if (JSON.stringify(next) === JSON.stringify(view.ask.params)) return;
      view.ask.params = next;
      app.show("models", next, 100);
    }, now ? 0 : SETTLED_MS);
  }

  function remember() {
    app.keep({ search: state.search, sort: state.sort === "name" ? null : state.sort, order: state.descending ? "falling" : null });
    heads.forEach((cell, at) => put(cell, "aria-sort", COLUMNS[at][0] === state.sort ? (state.descending ? "descending" : "ascending") : null));
  }

  function order(name) {
    state.descending = state.sort === name ? !state.descending : FALLING.has(name);
    state.sort = name;
    scroller.scrollTop = 0;
    remember();
    ask(true);
  }

  search.addEventListener("input", () => {
    state.search = search.value.trim();
    scroller.scrollTop = 0;
    remember();
    ask();
  });
  scroller.addEventListener("scroll", () => ask(), { passive: true });
  addEventListener("resize", ask);

  function space(node, height) {
    const text = `${height}px`;
    if (node.firstChild.style.height !== text) node.firstChild.style.height = text;
    node.hidden = height === 0;
  }

  remember();
  const view = {
    title: "Models",
    ask: { show: "models", params: query() },
    draw(data, head) {
      const second = Math.floor(head.now_ns / 1e9);
      if (last === data && view.second === second) return;
      last = data;
      view.second = second;
      write(total, `${count(data.total)} ${state.search ? "found" : "in all"}`);
      put(table, "aria-rowcount", data.total + 1);
      empty.hidden = data.total > 0;
      write(empty, state.search ? `No model's name contains “${state.search}”.` : "No models are served.");
      while (rows.length < data.rows.length) {
        const row = newRow();
        rows.push(row);
        below.before(row);
      }
      rows.forEach((row, at) => {
        if (at < data.rows.length) writeRow(row, data.rows[at], data.offset + at, head.now_ns);
        else row.hidden = true;
      });
      space(above, data.offset * ROW);
      space(below, Math.max(0, data.total - data.offset - data.rows.length) * ROW);
    },
    close() {
      clearTimeout(due);
      removeEventListener("resize", ask);
    },
  };
  return view;
}
