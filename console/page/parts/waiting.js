// Who waits for an INFER behind the plan, and how much slack is left.

import { el, keyed, panel, put, write } from "../dom.js";
import { model as ink, on, tint } from "../palette.js";
import { ns, plural } from "../text.js";
import { hatch } from "./page_map.js";

const ROW = 15;
const MOST_ROWS = 5;

/** How high the lane of those who wait is. */
export function waitingHeight(waiting) {
  return waiting.length ? 14 + Math.min(MOST_ROWS, waiting.length) * (ROW + 2) : 0;
}

function slackText(line) {
  if (line.slack_ns === null) return "no deadline";
  return line.slack_ns < 0 ? `${ns(-line.slack_ns)} too late` : `slack ${ns(line.slack_ns)}`;
}

/**
 * Draw the least slack of each model from `top` on: from now to the instant by which its INFER (and LOAD, where it is
 * resident nowhere) has to begin, then, hatched, what that takes, up to the deadline.
 */
export function drawWaiting(context, waiting, { x, top, left, width, now_ns, colour }) {
  const now = x(now_ns);
  waiting.slice(0, MOST_ROWS).forEach((line, at) => {
    const y = top + 12 + at * (ROW + 2);
    const end = line.deadline_ns === null ? width : Math.max(now + 2, x(line.deadline_ns));
    const begin = line.slack_ns === null ? end : Math.max(now, Math.min(end, x(now_ns + line.slack_ns)));
    context.fillStyle = ink(line.model);
    context.fillRect(now, y, end - now, ROW);
    if (end > begin) hatch(context, begin, y, end - begin, ROW);
    if (line.slack_ns !== null && line.slack_ns < 0) {
      context.strokeStyle = colour("bad");
      context.lineWidth = 2;
      context.strokeRect(now, y, Math.max(3, end - now), ROW);
    }
    const text = `${line.model} ×${line.requests}, ${slackText(line)}`;
    const wide = context.measureText(text).width;
    context.textBaseline = "middle";
    // Where the bar is too short its text stands before it, in what is over.
    const inside = begin - now > wide + 8;
    context.textAlign = inside ? "left" : "right";
    context.fillStyle = inside ? on(line.model) : colour("ink");
    if (inside || now - 6 - wide > left) context.fillText(text, inside ? now + 4 : now - 6, y + ROW / 2 + 0.5);
  });
}

/** The same as a table, for those who can't see the canvas; `draw(waiting, requests)`. */
export function waitingPanel() {
  const note = el("span.soft.small");
  const root = panel("Waiting behind the plan", note);
  const body = el("tbody", { role: "rowgroup" });
  const heads = ["Model", "Requests", "Slack", "Resident or loading on"];
  const empty = el("p.empty", {}, "No request waits: each is sent to a worker, or answered.");
  const table = el("table", { "aria-label": "Waiting requests" }, el("thead", {}, el("tr", {}, ...heads.map((text, at) => el(at === 1 || at === 2 ? "th.n" : "th", { scope: "col" }, text)))), body);
  root.append(el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Waiting requests" }, table, empty));
  function make(line) {
    const swatch = el("i.swatch");
    tint(swatch, line.model);
    const cells = [el("td.n"), el("td.n"), el("td.soft")];
    const row = el("tr", {}, el("th", { scope: "row" }, swatch, el("a", { href: `#/model/${encodeURIComponent(line.model)}` }, line.model)), ...cells);
    row.values = cells;
    return row;
  }
  return {
    root,
    draw(waiting, requests) {
      write(note, requests ? `${plural(requests, "request")}, the least slack first` : "");
      table.hidden = waiting.length === 0;
      empty.hidden = waiting.length > 0;
      keyed(body, waiting, (line) => line.model, make, (row, line) => {
        [String(line.requests), slackText(line), line.workers.join(", ") || "nowhere: it has to be loaded first"].forEach((text, at) => write(row.values[at], text));
        put(row.values[1], "class", line.slack_ns !== null && line.slack_ns < 0 ? "n bad" : "n");
      });
    },
  };
}
