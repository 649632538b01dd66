// What happened to workers and to the controller, as a list.

import { el, keyed, panel, put, write } from "../dom.js";
import { ago, when } from "../text.js";

/** Kinds of what happened to neither a worker nor the controller: their texts say to what. */
const OTHERS = new Set(["added", "removed", "refused"]);

/** What happened, in one line. */
export function told(line) {
  return OTHERS.has(line.kind) ? line.text : `${line.worker || "controller"}: ${line.text}`;
}

function make(line) {
  const who = line.worker ? el("a", { href: `#/worker/${encodeURIComponent(line.worker)}` }, line.worker) : OTHERS.has(line.kind) ? "" : "controller";
  return el("li", { "data-kind": line.kind }, el("span", {}, el("b", {}, who), " ", el("span.tag", { hidden: true }), ` ${line.text}`), el("span.soft"));
}

/** Neighbours of one worker and kind, where they come in bursts, as one: the newest, and how many there were. */
export function folded(lines) {
  const found = [];
  for (const line of lines) {
    const last = found.at(-1);
    const bursts = line.kind === "slow" || line.kind === "failed";
    if (last && bursts && last.kind === line.kind && last.worker === line.worker) last.times += 1;
    else found.push({ ...line, times: 1 });
  }
  return found;
}

/** The panel; `draw(lines, head)` shows HappeningLine of console/payloads.py, and hides it if there are none. */
export function happeningPanel(title = "What happened to workers and the controller") {
  const root = panel(title);
  const list = el("ul.deeds");
  root.append(list);
  root.hidden = true;
  return {
    root,
    draw(lines, head) {
      root.hidden = lines.length === 0;
      keyed(list, folded(lines), (line) => `${line.at_ns} ${line.worker} ${line.text}`, make, (node, line) => {
        const times = node.querySelector(".tag");
        times.hidden = line.times === 1;
        write(times, `${line.times} ×`);
        write(node.lastChild, ago(line.at_ns, head.now_ns));
        put(node.lastChild, "title", when(line.at_ns, head, 3));
      });
    },
  };
}
