// A recorded run at a glance, above its slider: what became of its requests, and their latency, down-sampled.

import { el } from "../dom.js";
import { call } from "../link.js";
import { colour } from "../palette.js";
import { count, ms, span, when } from "../text.js";
import { pairs, surface, tip } from "./canvas.js";

const AGAIN_MS = 1500;
const AREAS = [["in_time", "chart-good"], ["late", "chart-warn"], ["rejected", "chart-bad"]];
const MARK_PX = 4;

/** A strip in `holder`; `go(at_ns)` is called for the instant that is clicked. `draw(replay, head)` brings it up to date. */
export function density(holder, go) {
  holder.classList.add("plot");
  let data = null;
  let replay = null;
  let head = null;
  let asked = false;
  const { canvas, redraw } = surface(holder, paint);
  canvas.setAttribute("role", "img");
  const box = tip(holder);

  async function ask() {
    asked = true;
    try {
      data = await call("overview");
      tell();
      redraw();
      if (!data.whole) setTimeout(ask, AGAIN_MS);
    } catch {
      setTimeout(ask, 4 * AGAIN_MS); // The connection's own notice says that the console can't be reached.
    }
  }

  function tell() {
    const sum = (values) => values.reduce((total, value) => total + value, 0);
    canvas.setAttribute("aria-label", `The run at a glance: ${count(sum(data.offered))} requests, ${count(sum(data.late))} late, ${count(sum(data.rejected))} rejected`);
  }

  const x = (at_ns, width) => (width * (at_ns - replay.first_ns)) / Math.max(1, replay.last_ns - replay.first_ns);

  function paint(context, width, height) {
    if (!data || !replay) return;
    const most = Math.max(1, ...data.offered.map((_, at) => AREAS.reduce((sum, [name]) => sum + (data[name][at] ?? 0), 0)));
    const slowest = Math.max(1, ...data.p99_ms.map((value) => value ?? 0));
    const share = (at) => (data.rejected[at] + data.late[at]) / Math.max(1, data.offered[at]);
    const worst = Math.max(1e-9, ...data.offered.map((_, at) => share(at)));
    const edge = (at) => x(data.first_ns + at * data.step_ns, width);
    for (let at = 0; at < data.offered.length; at += 1) {
      const left = edge(at);
      let base = height;
      for (const [name, ink] of AREAS) {
        const high = ((data[name][at] ?? 0) / most) * (height - MARK_PX);
        context.fillStyle = colour(ink);
        context.fillRect(left, base - high, Math.max(1, edge(at + 1) - left - 0.5), high);
        base -= high;
      }
      // What is too little to be seen is what one looks for: each step that had some has a mark on top, the
      // stronger the greater its share.
      const bad = data.rejected[at] ? "chart-bad" : data.late[at] ? "chart-warn" : null;
      if (bad) {
        context.fillStyle = colour(bad);
        context.globalAlpha = 0.3 + (0.7 * share(at)) / worst;
        context.fillRect(left, 0, Math.max(2, edge(at + 1) - left), MARK_PX - 1);
        context.globalAlpha = 1;
      }
    }
    context.strokeStyle = colour("accent");
    context.lineWidth = 1.25;
    context.beginPath();
    data.p99_ms.forEach((value, at) => value !== null && context.lineTo((edge(at) + edge(at + 1)) / 2, height - (value / slowest) * (height - MARK_PX)));
    context.stroke();
    context.fillStyle = colour("sunk");
    context.globalAlpha = 0.8;
    if (!data.whole) context.fillRect(x(data.reached_ns, width), 0, width, height);
    context.globalAlpha = 1;
    context.fillStyle = colour("ink");
    context.fillRect(x(replay.at_ns, width) - 0.75, 0, 1.5, height);
  }

  const stepAt = (event) => Math.floor((replay.first_ns + (event.offsetX / canvas.clientWidth) * (replay.last_ns - replay.first_ns) - data.first_ns) / data.step_ns);
  canvas.addEventListener("pointermove", (event) => {
    const at = data && replay ? stepAt(event) : -1;
    if (!(at >= 0 && at < data.offered.length)) return box.hide();
    const rows = [["offered", data.offered[at]], ["in time", data.in_time[at]], ["late", data.late[at]], ["rejected", data.rejected[at]]].map(([name, value]) => [name, count(value)]);
    const from_ns = data.first_ns + at * data.step_ns;
    return box.show(event.offsetX, -26, el("b", {}, `${when(from_ns, head)}, ${span(data.step_ns)}`), pairs([...rows, ["p99", ms(data.p99_ms[at])]]));
  });
  canvas.addEventListener("pointerleave", () => box.hide());
  canvas.addEventListener("click", (event) => {
    // The end of what was clicked, so that it is the newest that is shown.
    if (data && replay) go(Math.min(replay.last_ns, data.first_ns + (stepAt(event) + 1) * data.step_ns));
  });

  return {
    draw(now, ofPicture) {
      const moved = replay?.at_ns !== now.at_ns;
      replay = now;
      head = ofPicture;
      if (!asked) ask();
      if (moved) redraw();
    },
  };
}
