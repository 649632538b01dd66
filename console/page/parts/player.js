// Of a recorded run: where in it the page is, and going elsewhere.

import { el, icon, put, write } from "../dom.js";
import { span, when } from "../text.js";
import { density } from "./density.js";

const PLAY = "M7 4l13 8-13 8z";
const PAUSE = "M8 5v14M16 5v14";
const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 5, 10];
const STEPS = 10_000;

/** Fill `root`; `seek(to)` sends one to the console. `draw(replay, head)` shows where it is. */
export function player(root, seek) {
  let replay = null;
  let dragging = false;
  const button = el("button.square", { type: "button", "aria-label": "Play", onclick: () => seek({ playing: !replay.playing }) }, icon(PLAY));
  const slider = el("input", { type: "range", min: "0", max: String(STEPS), step: "1", value: "0", "aria-label": "Instant of the recorded run" });
  const place = el("output", { "aria-live": "off" });
  const speed = el("select", { "aria-label": "Speed", onchange: () => seek({ speed: Number(speed.value) }) },
    ...SPEEDS.map((value) => el("option", { value: String(value) }, `${value}×`)));
  speed.value = "1";
  const strip = el("div.density");
  const glance = density(strip, (at_ns) => seek({ at_ns, playing: false }));
  root.append(button, el("div.track", {}, strip, slider), place, speed);

  const chosen = () => Math.round(replay.first_ns + (Number(slider.value) / STEPS) * (replay.last_ns - replay.first_ns));
  let due = 0;
  slider.addEventListener("input", () => {
    dragging = true;
    clearTimeout(due);
    due = setTimeout(() => {
      dragging = false;
      seek({ at_ns: chosen() });
    }, 120);
  });
  slider.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1e9, ArrowRight: 1e9, PageDown: -10e9, PageUp: 10e9 }[event.key];
    if (!steps || !replay) return;
    event.preventDefault();
    seek({ at_ns: Math.round(Math.max(replay.first_ns, Math.min(replay.last_ns, replay.at_ns + steps))) });
  });

  return {
    draw(now, head) {
      root.hidden = !now;
      if (!now) return;
      if (replay?.playing !== now.playing) {
        button.replaceChildren(icon(now.playing ? PAUSE : PLAY));
        put(button, "aria-label", now.playing ? "Pause" : "Play");
      }
      if (replay?.speed !== now.speed && SPEEDS.includes(now.speed)) speed.value = String(now.speed);
      replay = now;
      const length_ns = Math.max(1, now.last_ns - now.first_ns);
      if (!dragging) slider.value = String(Math.round(((now.at_ns - now.first_ns) / length_ns) * STEPS));
      const text = `${when(now.at_ns, head)} · ${span(now.at_ns - now.first_ns)} of ${span(length_ns)}`;
      write(place, text);
      glance.draw(now, head);
      put(slider, "aria-valuetext", text);
    },
  };
}
