// What executors did, do and will do: a timeline that follows the present, stops, zooms and goes back.

import { el, icon, keyed, panel, put, write } from "../dom.js";
import { ID, KIND, MODEL, Held } from "../parts/actions.js";
import { actionPanel, actionTable, described } from "../parts/action_list.js";
import { pairs, tip } from "../parts/canvas.js";
import { handle } from "../parts/gestures.js";
import { happeningPanel } from "../parts/happenings.js";
import { waitingHeight, waitingPanel } from "../parts/waiting.js";
import { Timeline, arrange, inSight } from "../parts/timeline.js";
import { byName, instant, span as spanText, stamp, when } from "../text.js";
import { call } from "../link.js";

const SHORTEST_NS = 2e6;
const LONGEST_NS = 120e9;
const FIRST_NS = 1e9;
const AHEAD = 0.25;
const MOST_AHEAD_NS = 400e6;
const SETTLED_MS = 150;
const PAUSE = "M8 5v14M16 5v14";
const PLAY = "M7 4l13 8-13 8z";

function tool(label, path, act) {
  return el("button.square", { type: "button", "aria-label": label, title: label, onclick: act }, icon(path));
}

function legend() {
  const entries = [["done", "done; the line below it: as predicted"], ["planned", "planned, or running by plan"], ["window", "window in which it may begin"], ["crossed", "rejected or failed"], ["happened", "what happened to a worker; listed below"], ["joined", "a LOAD and the first INFER after it"], ["slack", "waiting: its slack, then what it takes"]];
  return el("div.legend.keys", { "aria-hidden": "true" }, ...entries.map(([kind, text]) => el("span", {}, el(`i.${kind}`), text)));
}

/** A length of time as the address has it, in milliseconds. */
function spanOf(text) {
  const length_ns = Number(text) * 1e6;
  return length_ns > 0 ? Math.max(SHORTEST_NS, Math.min(LONGEST_NS, length_ns)) : FIRST_NS;
}

/** The view; `worker` is whose executors are shown, all if empty. */
export function schedule(root, worker, app, params) {
  const held = new Held();
  const workers = worker ? [worker] : [];
  const at = { live: true, span_ns: spanOf(params.get("span")), from_ns: 0, other: params.get("other") === "all" };
  // What the address says can be gone to once a picture said how its calendar and the controller's clock relate.
  let opened = false;
  let sought = Number(params.get("action")) || null;
  let head = null;
  let rows = { rows: [], height: 120 };
  let hover = null;
  let selected = null;
  let due = 0;
  let listed = 0;
  let kept = 0;

  const heading = el("h1", {}, worker ? `Schedule of ${worker}` : "Schedule");
  const which = el("select", { "aria-label": "Workers", onchange: () => app.go(which.value ? `#/schedule/${encodeURIComponent(which.value)}` : "#/schedule") },
    el("option", { value: "" }, "All workers"));
  const follow = el("button.main", { type: "button", onclick: () => (at.live ? stop() : resume()) });
  const scrub = el("input", { type: "range", min: "0", max: "1000", value: "1000", "aria-label": "Instant shown" });
  const place = el("output.soft");
  const other = el("input", { type: "checkbox" });
  other.checked = at.other;
  const past = el("p.warn.small", { hidden: true }, "That moment is not remembered any more: the console keeps the last minutes. A recorded run has all of it (mainspring console --log).");
  const few = el("p.warn.small", { hidden: true }, "There were more actions than one picture holds; the newest are shown. Zoom in to see all of them.");
  const controls = el("div.controls", {}, follow,
    tool("Earlier", "M14 5l-7 7 7 7", () => pan(-0.5)), tool("Later", "M10 5l7 7-7 7", () => pan(0.5)),
    tool("Zoom out", "M5 12h14", () => zoom(2)), tool("Zoom in", "M5 12h14M12 5v14", () => zoom(0.5)),
    scrub, place, el("label.tick", {}, other, "Unload, prepare"));
  const holder = el("div.timeline");
  const box = panel("Timeline", legend());
  box.append(controls, past, few, holder);
  const timeline = new Timeline(holder, scene);
  const popup = tip(holder);
  const chosen = actionPanel();
  const happened = happeningPanel();
  const queue = waitingPanel();
  const list = actionTable((action) => {
    select(action);
    chosen.root.scrollIntoView({ block: "nearest" });
  });
  root.append(el("div.head", {}, heading, el("span.end", {}, which)), box, chosen.root, queue.root, happened.root, list.root);

  function ahead_ns() {
    return Math.min(AHEAD * at.span_ns, MOST_AHEAD_NS);
  }

  function from_ns() {
    return at.live && head ? head.now_ns + ahead_ns() - at.span_ns : at.from_ns;
  }

  function scene() {
    if (!head) return null;
    return { actions: [...held.actions.values()], happenings: held.happenings, rows: rows.rows, waiting: held.waiting, bottom: rows.height, from_ns: from_ns(), span_ns: at.span_ns, now_ns: head.now_ns, head, labels: holder.clientWidth > 620 ? 124 : 62, hover, selected };
  }

  function query() {
    if (at.live) return { back_ms: Math.ceil((at.span_ns - ahead_ns()) / 1e6) + 100, ahead_ms: 10_000, workers };
    const margin = at.span_ns / 2;
    return { from_ns: Math.round(at.from_ns - margin), to_ns: Math.round(at.from_ns + at.span_ns + margin), workers };
  }

  function covered() {
    const { from_ns: first, to_ns: last, back_ms } = view.ask.params;
    if (at.live) return back_ms !== undefined && back_ms * 1e6 >= at.span_ns - ahead_ns() && back_ms * 1e6 < 3 * at.span_ns + 2e8;
    return first !== undefined && first <= at.from_ns && last >= at.from_ns + at.span_ns && last - first < 5 * at.span_ns;
  }

  /** What is shown changed: draw it, and ask for what is missing once the hand rests. */
  function moved() {
    timeline.redraw();
    listed = 0;
    controlsNow();
    remember();
    if (covered()) return;
    clearTimeout(due);
    due = setTimeout(() => {
      view.ask.params = query();
      app.show("schedule", view.ask.params, 100);
    }, SETTLED_MS);
  }

  /** Let the address say what is shown. */
  function remember() {
    if (!opened) return;
    clearTimeout(kept);
    kept = setTimeout(() => app.keep({
      from: at.live || !head ? null : stamp(at.from_ns, head),
      span: at.span_ns === FIRST_NS ? null : String(Number((at.span_ns / 1e6).toPrecision(4))),
      other: at.other ? "all" : null,
      action: selected ? selected[ID] : sought,
    }), SETTLED_MS);
  }

  /** Show the time that the address said. */
  function open() {
    opened = true;
    const from_ns = instant(params.get("from"), head);
    if (from_ns === null) return;
    at.live = false;
    at.from_ns = from_ns;
    moved();
  }

  function stop() {
    if (!at.live) return;
    at.from_ns = from_ns();
    at.live = false;
    moved();
  }

  function resume() {
    at.live = true;
    moved();
  }

  function pan(share) {
    stop();
    at.from_ns = clamp(at.from_ns + share * at.span_ns);
    moved();
  }

  function clamp(instant) {
    if (!head) return instant;
    const first = head.first_ns - at.span_ns / 2;
    return Math.max(Math.min(first, head.now_ns - at.span_ns), Math.min(head.now_ns + MOST_AHEAD_NS - at.span_ns / 4, instant));
  }

  /** Show `factor` times as much; what is at `share` of the width stays there. */
  function zoom(factor, share = 0.5) {
    const next = Math.max(SHORTEST_NS, Math.min(LONGEST_NS, at.span_ns * factor));
    if (!at.live) at.from_ns += (at.span_ns - next) * share;
    at.span_ns = next;
    moved();
  }

  function select(action) {
    selected = action;
    sought = null;
    chosen.draw(selected, held.lanes, head);
    timeline.redraw();
    remember();
  }

  function point(x, y) {
    const found = x === null ? null : timeline.at(x, y);
    const mark = x === null || found ? null : timeline.markAt(x, y);
    if (found) popup.show(x, y, el("b", {}, `${found[KIND]} ${found[MODEL]}`), pairs(described(found, held.lanes, head)));
    else if (mark) popup.show(x, y, el("b", {}, mark.worker || "controller"), ` ${mark.text}`, el("br"), when(mark.at_ns, head, 3));
    else popup.hide();
    if (found !== hover) {
      hover = found;
      timeline.canvas.style.cursor = found ? "pointer" : "grab";
      timeline.redraw();
    }
  }

  /** Choose the action after (or before) the chosen one. */
  function step(by) {
    const sight = inSight(held.actions.values(), rows.rows, from_ns(), from_ns() + at.span_ns);
    if (!sight.length) return;
    const now = selected ? sight.findIndex((action) => action[ID] === selected[ID]) : -1;
    stop();
    select(sight[now < 0 ? sight.length - 1 : Math.max(0, Math.min(sight.length - 1, now + by))]);
  }

  function controlsNow() {
    const playing = at.live ? "Pause" : "Go live";
    if (follow.shown !== playing) {
      follow.shown = playing;
      follow.replaceChildren(icon(at.live ? PAUSE : PLAY), playing);
    }
    put(box, "data-live", String(at.live));
    if (!head) return;
    const first = head.first_ns;
    const reach = Math.max(1, head.now_ns - first);
    const last = from_ns() + at.span_ns;
    if (document.activeElement !== scrub || at.live) scrub.value = at.live ? "1000" : String(Math.round((1000 * (last - first)) / reach));
    const length = at.span_ns < 1e9 ? `${Math.round(at.span_ns / 1e6)} ms` : spanText(at.span_ns);
    const text = at.live ? `the last ${length}` : `${when(from_ns(), head, 3)}, ${length}`;
    write(place, text);
    put(scrub, "aria-valuetext", text);
  }

  scrub.addEventListener("input", () => {
    if (!head) return;
    if (Number(scrub.value) >= 1000) {
      resume();
      return;
    }
    stop();
    at.from_ns = clamp(head.first_ns + (Number(scrub.value) / 1000) * (head.now_ns - head.first_ns) - at.span_ns);
    moved();
  });
  other.addEventListener("change", () => {
    at.other = other.checked;
    arranged();
    moved();
  });
  timeline.canvas.setAttribute("role", "application");
  timeline.canvas.setAttribute("aria-roledescription", "timeline");
  timeline.canvas.setAttribute("aria-label", "Timeline. Left and right move in time, plus and minus zoom, space stops and follows, comma and full stop choose an action, which is described below.");
  timeline.canvas.tabIndex = 0;
  handle(timeline.canvas, {
    left: () => timeline.left ?? 0,
    pan, zoom, point, step, resume,
    toggle: () => (at.live ? stop() : resume()),
    pick: (x, y) => select(timeline.at(x, y)),
  });

  function arranged() {
    const wanted = (held.shown ?? []).filter((number) => !worker || held.lanes[number].worker === worker);
    rows = arrange(held.lanes, wanted, at.other);
    const height = `${Math.max(120, rows.height + waitingHeight(held.waiting))}px`;
    if (holder.style.height !== height) holder.style.height = height;
  }

  async function offered() {
    try {
      const found = await call("cluster?recent=0");
      keyed(which, [{ name: "" }, ...byName(found.data.workers)], (one) => one.name || "all",
        (one) => el("option", { value: one.name }, one.name || "All workers"), () => {});
      which.querySelector("option:not([value])")?.remove();
      which.value = worker;
    } catch {
      // The connection's own notice says that the console can't be reached.
    }
  }
  which.replaceChildren();
  offered();
  controlsNow();

  const view = {
    title: worker ? `Schedule of ${worker}` : "Schedule",
    ask: { show: "schedule", params: query() },
    take(message) {
      if (message.data && !message.same) held.take(message.data, message.after ?? 0);
    },
    draw(data, now) {
      head = now;
      arranged();
      if (!opened && now.unix_ns) open();
      if (sought && held.actions.has(sought)) select(held.actions.get(sought));
      past.hidden = at.live || at.from_ns + at.span_ns >= now.first_ns;
      if (selected) selected = held.actions.get(selected[ID]) ?? selected;
      few.hidden = !held.truncated;
      if (at.live) {
        hover = hover && (held.actions.get(hover[ID]) ?? null);
        timeline.redraw();
      } else if (view.version !== held.version) timeline.redraw();
      view.version = held.version;
      controlsNow();
      const second = at.live ? Math.floor(now.now_ns / 1e9) : 1 + held.version;
      if (second !== listed) {
        listed = second;
        list.draw(inSight(held.actions.values(), rows.rows, from_ns(), from_ns() + at.span_ns), held.lanes, now);
        chosen.draw(selected, held.lanes, now);
        happened.draw(held.happenings, now);
        queue.draw(held.waiting, held.waiting_requests);
      }
    },
    key(event) {
      if (event.key === " " && event.target === document.body) {
        event.preventDefault();
        if (at.live) stop();
        else resume();
      }
    },
    close() {
      clearTimeout(due);
      clearTimeout(kept);
      timeline.close();
    },
  };
  return view;
}
