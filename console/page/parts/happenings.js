// What happened to workers and to the controller, as a list.

import { el, keyed, panel, put, write } from "../dom.js";
import { ago, when } from "../text.js";

function make(line) {
  const who = line.worker ? el("a", { href: `#/schedule/${encodeURIComponent(line.worker)}` }, line.worker) : "controller";
  return el("li", { "data-kind": line.kind }, el("span", {}, el("b", {}, who), ` ${line.text}`), el("span.soft"));
}

/** The panel; `draw(lines, head)` shows HappeningLine of console/payloads.py, and hides it if there are none. */
export function happeningPanel() {
  const root = panel("What happened to workers and the controller");
  const list = el("ul.deeds");
  root.append(list);
  root.hidden = true;
  return {
    root,
    draw(lines, head) {
      root.hidden = lines.length === 0;
      keyed(list, lines, (line) => `${line.at_ns} ${line.worker} ${line.text}`, make, (node, line) => {
        write(node.lastChild, ago(line.at_ns, head.now_ns));
        put(node.lastChild, "title", when(line.at_ns, head, 3));
      });
    },
  };
}
