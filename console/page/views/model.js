// One model: where it is, what it takes, what became of its newest requests.

import { el, keyed, panel, put, write } from "../dom.js";
import { tint } from "../palette.js";
import { OUTCOMES, chart, legend } from "../parts/chart.js";
import { Cursor } from "../parts/cursor.js";
import { requestTable } from "../parts/requests.js";
import { COMMANDS, commandPanel } from "../parts/commands.js";
import { UNSEEN, ago, byName, bytes, count, ms, percent, plural, stamp } from "../text.js";

const SECONDS = 300;

function facts(names) {
  const values = Object.fromEntries(names.map((name) => [name, el("dd")]));
  return { root: el("dl.facts", {}, ...names.flatMap((name) => [el("dt", {}, name), values[name]])), values };
}

function figures(names) {
  const values = names.map(() => el("dd"));
  return { root: el("dl.figures", {}, ...names.map((name, at) => el("div", {}, el("dt", {}, name), values[at]))), values };
}

function placementsPanel() {
  const list = el("ul.placements");
  const empty = el("p.empty", {}, "No worker knows it yet.");
  const root = panel("Where it is");
  root.append(list, empty);
  return {
    root,
    draw(placements) {
      const all = byName(Object.entries(placements), ([worker]) => worker);
      empty.hidden = all.length > 0;
      keyed(list, all, ([worker]) => worker, ([worker]) => {
        const state = el("span.mark");
        const why = el("span.soft.small");
        const item = el("li", {}, el("a", { href: `#/memory/${encodeURIComponent(worker)}` }, worker), state, why);
        Object.assign(item, { state, why });
        return item;
      }, (item, [, text]) => {
        const [state, ...why] = text.split(": ");
        put(item.state, "data-is", state);
        write(item.state, state);
        write(item.why, why.join(": "));
      });
    },
  };
}

/** Charts of what became of its requests in each second, and how long those took that were executed. */
function coursePanels(cursor) {
  const requests = el("div.tall");
  const latencies = el("div.tall");
  const lines = [
    { name: "longest", colour: "accent", line: true, pick: (series) => series.longest_ms },
    { name: "mean", colour: "soft", line: true, pick: (series) => series.mean_ms },
  ];
  const outcomes = panel("Requests", legend(OUTCOMES));
  outcomes.append(requests);
  const times = panel("Latency", legend(lines));
  times.append(latencies);
  const shown = [
    chart(requests, { cursor, axis: "requests each second", label: "Requests for the model each second", unit: (value) => `${count(value)}/s`, layers: OUTCOMES }),
    chart(latencies, { cursor, axis: "latency in each second, ms", label: "Latency of the model's requests each second", unit: ms, least: 0.1, layers: lines }),
  ];
  return {
    roots: [outcomes, times],
    draw: (series, head) => shown.forEach((one) => one.set(series, SECONDS, head)),
    close: () => shown.forEach((one) => one.close()),
  };
}

/** Buckets in the order of the space that they take: an object has whole numbers first. */
function bySpace(buckets) {
  const space = (bucket) => bucket.split("x").reduce((product, size) => product * Number(size), 1);
  return Object.entries(buckets).sort(([a], [b]) => space(a) - space(b));
}

/** How durations spread, and what that costs requests of other models on the same worker. */
export function spreadText(spread) {
  const batch = `A batch of ${spread.batch_size}${spread.sizes ? ` of sizes up to ${spread.sizes.replaceAll("x", " x ")}` : ""}`;
  const rest = Math.max(0, spread.p99_ms - spread.estimate_ms);
  return `${batch} took ${ms(spread.median_ms)} by the median, ${ms(spread.mean_ms)} on average and ${ms(spread.p99_ms)} at the 99th percentile of ${count(spread.durations)}. `
    + (rest > 0 ? `Others are planned behind it by ${ms(spread.estimate_ms)}: one run in a hundred makes them wait ${ms(rest)} more than that, or longer.` : "No more than one run in a hundred makes others wait longer than they are planned for.");
}

/** The last action that took far longer than expected, and that no estimate follows it. */
export function outlierText(outlier, now) {
  const many = outlier.count === 1 ? "One execution or load" : `${count(outlier.count)} executions and loads`;
  return `${many} took so much longer than expected that no estimate follows one alone; the last, action ${outlier.action_id} on ${outlier.worker} ${ago(outlier.at_ns, now)}, ${ms(outlier.took_ms)} instead of ${ms(outlier.expected_ms)}.`;
}

/** How long a model's batches take, by size; `draw(data, head)` shows a model's picture. */
export function durationsPanel() {
  const flag = el("span.mark", { "data-is": "late", hidden: true, title: "The 99th percentile of its durations passed three times their median" }, "erratic");
  const root = panel("How long it takes", flag);
  const spread = el("p", { hidden: true });
  const outlier = el("p", { hidden: true });
  const holder = el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Durations by batch size" });
  const curve = el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Estimates by size", hidden: true });
  root.append(spread, outlier, holder, curve);
  let drawn = "";
  return {
    root,
    draw(data, head) {
      flag.hidden = !data.line.erratic;
      spread.hidden = !data.spread;
      if (data.spread) write(spread, spreadText(data.spread));
      outlier.hidden = !data.outlier;
      if (data.outlier) write(outlier, outlierText(data.outlier, head.now_ns));
      const key = JSON.stringify([data.profiles, data.load_ms, data.load_now_ms, data.line.infer_ms, data.buckets]);
      if (key === drawn) return;
      drawn = key;
      const kinds = Object.keys(data.profiles).sort();
      const sizes = [...new Set([data.line.infer_ms, ...Object.values(data.profiles)].flatMap(Object.keys))].map(Number).sort((a, b) => a - b);
      const most = Math.max(...sizes.map((size) => data.line.infer_ms[size] ?? 0), 0.001);
      const heads = ["Batch", "Estimate now", "", ...kinds.map((kind) => `Profile, ${kind}`), "Rows/s at the estimate"];
      const lines = sizes.map((size) => {
        const now = data.line.infer_ms[size];
        const bar = el("i");
        bar.style.width = `${Math.round((100 * (now ?? 0)) / most)}%`;
        return el("tr", {}, el("th", { scope: "row" }, String(size)), el("td.n", {}, ms(now)), el("td.bar-cell", { "aria-hidden": "true" }, bar),
          ...kinds.map((kind) => el("td.n", {}, ms(data.profiles[kind][size]))), el("td.n", {}, now ? count((1000 * size) / now) : "–"));
      });
      const load = el("tr", {}, el("th", { scope: "row" }, "LOAD"), el("td.n", {}, ms(data.load_now_ms)), el("td"), ...kinds.map((kind) => el("td.n", {}, ms(data.load_ms[kind]))), el("td"));
      holder.replaceChildren(el("table", { "aria-label": "Durations by batch size" },
        el("thead", {}, el("tr", {}, ...heads.map((text, at) => (text ? el(at ? "th.n" : "th", { scope: "col" }, text) : el("td"))))), el("tbody", {}, ...lines, load)));
      curve.hidden = Object.keys(data.buckets).length === 0;
      curve.replaceChildren(el("table", { "aria-label": "Estimates by size" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Sizes up to"), ...sizes.map((size) => el("th.n", { scope: "col" }, `Batch of ${size}`)))),
        el("tbody", {}, ...bySpace(data.buckets).map(([bucket, times]) =>
          el("tr", {}, el("th", { scope: "row" }, bucket.replaceAll("x", " x ")), ...sizes.map((size) => el("td.n", {}, ms(times[size]))))))));
    },
  };
}

/** Who made room for whom: with which models this one takes turns in memory. */
function roomPanel() {
  const flag = el("span.mark", { "data-is": "late", hidden: true }, "thrashes");
  const root = panel("Loads and evictions", flag);
  const said = el("p");
  const lists = [["Evicted to make room for", "evicted_for"], ["Evicted others", "evicted"]].map(([title, key]) => {
    const list = el("ul.reasons");
    const part = el("div", {}, el("h3", {}, title), list);
    return { key, list, part };
  });
  root.append(said, el("div.two.even", {}, ...lists.map((one) => one.part)));
  return {
    root,
    draw(data) {
      const { line } = data;
      flag.hidden = !line.thrashes;
      put(flag, "title", "It was evicted again and again over the last minutes, and loaded again nearly each time.");
      write(said, `${count(line.loads_pm)} loads and ${count(line.evictions_pm)} evictions a minute over the last minutes.`);
      for (const { key, list, part } of lists) {
        const entries = Object.entries(data[key]).sort((a, b) => b[1] - a[1]);
        part.hidden = entries.length === 0;
        keyed(list, entries, ([other]) => other, ([other]) => {
          const swatch = el("i.swatch");
          tint(swatch, other);
          return el("li", {}, el("span", {}, swatch, el("a", { href: `#/model/${encodeURIComponent(other)}` }, other)), el("b"));
        }, (node, [, times]) => write(node.lastChild, `${count(times)} ×`));
      }
    },
  };
}

/** What an operator may do with the model. */
function actions(name) {
  const where = el("select", { "aria-label": "Worker" });
  const slo = el("input", { type: "number", min: "0.1", step: "any", placeholder: "SLO, ms", "aria-label": "Default SLO in ms; empty: as configured" });
  const button = (text, command) => (act) => el("button", { type: "button", onclick: () => act(command()) }, text);
  const worker = () => where.value || null;
  const made = commandPanel((act) => [
    button("Pin", () => COMMANDS.pin(name))(act), button("Unpin", () => COMMANDS.unpin(name))(act), where,
    button("Load", () => COMMANDS.load(name, worker()))(act), button("Unload", () => COMMANDS.unload(name, worker()))(act), slo,
    button("Set default SLO", () => COMMANDS.slo(name, slo.value === "" ? null : Number(slo.value)))(act)]);
  return {
    root: made.root,
    draw(placements, head) {
      made.draw(head);
      keyed(where, [["", ""], ...byName(Object.entries(placements), ([one]) => one)], ([one]) => one || "any",
        ([one]) => el("option", { value: one }, one || "any worker"), () => {});
    },
  };
}

/** The view of the model called `name`. */
export function model(root, name, app) {
  let now = null;
  const cursor = new Cursor((at_ns) => at_ns !== null && app.go(`#/cluster?moment=${stamp(at_ns, now)}&model=${encodeURIComponent(name)}`));
  const course = coursePanels(cursor);
  const swatch = el("i.swatch.large");
  tint(swatch, name);
  const pinned = el("span.tag", { hidden: true }, "pinned");
  const operate = actions(name);
  const room = roomPanel();
  const numbers = figures(["Requests/s", "In time", "Late", "Rejected", "Cold starts", "Queue", "Latency p50", "Latency p99"]);
  const what = facts(["Clients call it", "Ready", "Weights", "Extents", "Inputs", "Outputs", "Sequences", "Last load", "Default SLO"]);
  const places = placementsPanel();
  const durations = durationsPanel();
  const recent = requestTable(`Newest requests for ${name}`, "No request came for it in the last minutes.", false);
  const recentPanel = panel("Newest requests");
  recentPanel.append(recent.root);
  const whatPanel = panel("The model");
  whatPanel.append(what.root);
  root.append(el("nav.crumbs", { "aria-label": "Where this is" }, el("a", { href: "#/models" }, "Models")),
    el("div.head", {}, swatch, el("h1.break", {}, name), pinned), el("section.panel", { "aria-label": "The last minutes" }, numbers.root),
    el("div.two", {}, ...course.roots), el("div.two.even", {}, places.root, whatPanel), room.root, durations.root, operate.root, recentPanel);

  return {
    title: name,
    ask: { show: "model", params: { name }, every_ms: 200 },
    draw(data, head) {
      const { line } = data;
      now = head;
      course.draw(data.series, head);
      const all = line.in_time + line.late + line.rejected;
      pinned.hidden = !line.pinned;
      [count(line.demand_rps), all ? `${count(line.in_time)} (${percent(line.in_time / all)})` : "0", count(line.late), count(line.rejected), count(line.cold), count(line.queued), ms(line.p50_ms), ms(line.p99_ms)]
        .forEach((text, at) => write(numbers.values[at], text));
      const texts = {
        "Clients call it": data.versions_of || line.name,
        "Ready": `${data.not_ready ? `no: ${data.not_ready}` : "yes"}${data.verified === false ? "; unverified: compared with nothing" : ""}`,
        Weights: `${bytes(data.weights_bytes)} in ${plural(line.pages, "page")}`,
        Extents: data.extents.length ? `${data.extents.slice(0, 24).join(" + ")}${data.extents.length > 24 ? " …" : ""} pages` : "–",
        Inputs: data.inputs.join(", ") || "–",
        Outputs: data.outputs.join(", ") || "–",
        Sequences: data.states ? data.states.map((state) => `${state} of the next request`).join(", ") || "without a state" : "–",
        "Last load": line.last_load_ns === null ? UNSEEN : ago(line.last_load_ns, head.now_ns),
        "Default SLO": line.slo_ms === null ? "as configured" : ms(line.slo_ms),
      };
      for (const [key, text] of Object.entries(texts)) write(what.values[key], text);
      places.draw(data.placements);
      room.draw(data);
      operate.draw(data.placements, head);
      durations.draw(data, head);
      recent.draw(data.recent, head);
    },
    close: course.close,
  };
}
