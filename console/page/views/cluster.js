// The cluster as a whole: how many requests are answered in time, how late, and by whom.

import { choice, el, keyed, panel, put, write } from "../dom.js";
import { OUTCOMES, chart, legend } from "../parts/chart.js";
import { Cursor } from "../parts/cursor.js";
import { happeningPanel } from "../parts/happenings.js";
import { momentPanel } from "../parts/moment.js";
import { requestTable } from "../parts/requests.js";
import { ago, count, instant, ms, percent, stamp, words } from "../text.js";
import { workerCards } from "./workers.js";

const WINDOWS = [["last_10s", "10 s"], ["last_60s", "1 min"], ["last_300s", "5 min"]];
/** A window's name in the address. */
const NAMES = { last_10s: "10s", last_60s: "1min", last_300s: "5min" };
const MOST_REASONS = 3;
const KEPT = "mainspring.window";

function tile(name) {
  const value = el("strong");
  const note = el("small");
  return { root: el("div.tile", {}, el("h3", {}, name), value, note), value, note };
}

function goodputPanel(cursor) {
  const share = el("strong.hero");
  const rate = el("p.soft");
  const holder = el("div.tall");
  const layers = [...OUTCOMES.slice(0, -1), { name: "refused by gateways", colour: "soft", pick: (series) => series.turned_away }, OUTCOMES.at(-1)];
  const root = panel("Goodput", legend(layers));
  root.classList.add("goodput");
  root.append(el("div.pair", {}, share, rate), holder);
  const plot = chart(holder, {
    cursor,
    axis: "requests each second",
    label: "Requests each second",
    unit: (value) => `${count(value)}/s`,
    layers,
  });
  return { root, share, rate, plot };
}

function latencyPanel(cursor) {
  const cells = ["p50", "p99", "p99.99"].map((name) => {
    const value = el("dd");
    return { root: el("div", {}, el("dt", {}, name), value), value };
  });
  const slo = el("span.soft.small");
  const holder = el("div.tall");
  const root = panel("Latency", slo);
  root.append(el("dl.percentiles", {}, ...cells.map((cell) => cell.root)), holder);
  const plot = chart(holder, {
    cursor,
    axis: "p99 of each second, ms",
    label: "p99 of latency each second",
    unit: (value) => (value >= 1000 ? `${value / 1000} s` : `${count(value)} ms`),
    layers: [{ name: "p99", colour: "accent", line: true, pick: (series) => series.p99_ms }],
  });
  return { root, cells, slo, plot };
}

function drawLatency(part, window, data, seconds, head) {
  const limit = window.slo_p50_ms;
  [window.p50_ms, window.p99_ms, window.p9999_ms].forEach((value, at) => {
    const over = value !== null && limit !== null && value > limit;
    write(part.cells[at].value, ms(value) + (over ? " ▲" : ""));
    put(part.cells[at].value, "class", over ? "warn" : null);
    put(part.cells[at].value, "title", over ? "above the SLO" : null);
  });
  write(part.slo, limit === null ? "no request has a deadline" : `SLO ${ms(limit)} (median)`);
  part.plot.set(data.series, seconds, head, limit === null ? null : { value: limit, name: "SLO" }, data.happenings);
}

function drawReasons(list, rejected) {
  const all = Object.entries(rejected).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  const rest = all.slice(MOST_REASONS).reduce((sum, [, number]) => sum + number, 0);
  const known = rest ? [...all.slice(0, MOST_REASONS), ["other reasons", rest]] : all;
  keyed(list, known, ([code]) => code,
    ([code]) => el("li", {}, el("span", {}, words(code)), el("b")),
    (node, [, number]) => write(node.lastChild, count(number)));
}

/** What gateways refused themselves, and what they are yet to serve; neither is among the requests above. */
function refusedPanel() {
  const root = panel("Refused by gateways");
  const list = el("ul.reasons");
  root.append(el("p.soft.small", {}, "These requests never reached the controller, and no other count has them."), list);
  return {
    root,
    draw(reasons) {
      const all = Object.entries(reasons).sort((a, b) => b[1] - a[1]);
      root.hidden = all.length === 0;
      keyed(list, all, ([code]) => code, ([code]) => el("li", {}, el("span", {}, words(code)), el("b")), (node, [, number]) => write(node.lastChild, count(number)));
    },
  };
}

/** Models that are to be served and are not yet. */
export function awaitedPanel() {
  const root = panel("Not served yet");
  const list = el("ul.deeds");
  const more = el("p.soft.small");
  root.append(list, more);
  return {
    root,
    draw(awaited, others) {
      root.hidden = Object.keys(awaited).length === 0;
      keyed(list, Object.entries(awaited), ([name]) => name, ([name]) => el("li", {}, el("b", {}, name), el("span")), (node, [, why]) => write(node.lastChild, why));
      more.hidden = others === 0;
      write(more, `and ${count(others)} more`);
    },
  };
}

/** The view; see main.js for what it returns. */
export function cluster(root, rest, app, params) {
  const asked = Object.keys(NAMES).find((name) => NAMES[name] === params.get("window"));
  let chosen = asked ?? sessionStorage.getItem(KEPT) ?? "last_60s";
  if (!(chosen in NAMES)) chosen = "last_60s";
  app.keep({ window: NAMES[chosen] });
  let last = null;
  // The second that the address names can be chosen once a picture said how its calendar and the clock relate.
  let opened = params.get("moment") === null;
  const cursor = new Cursor((at_ns) => {
    app.keep({ moment: at_ns === null ? null : stamp(at_ns, last.head) });
    moment.draw(at_ns, last.head, app.settled());
    if (at_ns !== null) moment.root.scrollIntoView({ block: "nearest" });
  });
  const moment = momentPanel(() => cursor.pin(null), (name) => app.keep({ model: name }), params.get("model"));
  const goodput = goodputPanel(cursor);
  const latency = latencyPanel(cursor);
  const tiles = ["Offered", "Rejected", "Late", "Cold starts", "Queued"].map(tile);
  const [offered, rejected, late, cold, queued] = tiles;
  const reasons = el("ul.reasons", { "aria-label": "Rejected, by reason" });
  rejected.root.append(reasons);
  const cards = workerCards();
  const recent = requestTable("Rejected and late requests", "Nothing was rejected or late in the last minutes.");
  const recentPanel = panel("Rejected and late", el("a", { href: "#/request" }, "Find a request"));
  recent.root.classList.add("tall-list");
  recentPanel.append(recent.root);
  const deeds = el("ul.deeds");
  const deedsPanel = panel("What operators did");
  deedsPanel.append(deeds);
  const happened = happeningPanel();
  const refusals = refusedPanel();
  const awaited = awaitedPanel();
  const aside = el("div.two.even", {}, refusals.root, awaited.root);
  const windows = choice("Over the last", WINDOWS, chosen, (name) => {
    chosen = name;
    sessionStorage.setItem(KEPT, name);
    app.keep({ window: NAMES[name] });
    if (last) draw(last.data, last.head);
  });
  windows.classList.add("end");
  root.append(
    el("div.head", {}, el("h1", {}, "Cluster"), windows),
    el("div.two", {}, goodput.root, latency.root), moment.root,
    el("div.tiles", {}, ...tiles.map((one) => one.root)),
    aside, cards.root, happened.root, recentPanel, deedsPanel,
  );

  function draw(data, head) {
    last = { data, head };
    if (!opened && head.unix_ns) {
      opened = true;
      cursor.pin(instant(params.get("moment"), head), true);
    }
    moment.draw(cursor.pinned_ns, head, app.settled());
    const window = data[chosen];
    const share = window.offered_rps > 0 ? window.in_time_rps / window.offered_rps : null;
    write(goodput.share, percent(share === null ? null : Math.min(1, share)));
    write(goodput.rate, share === null ? "no request came" : `${count(window.in_time_rps)} of ${count(window.offered_rps)} requests/s in time`);
    const seconds = chosen === "last_300s" ? 300 : 60;
    goodput.plot.set(data.series, seconds, head, null, data.happenings);
    goodput.plot.label(`Requests each second: ${count(window.offered_rps)} offered, ${count(window.in_time_rps)} in time`);
    drawLatency(latency, window, data, seconds, head);
    happened.draw(data.happenings, head);
    refusals.draw(window.turned_away);
    awaited.draw(data.awaited, data.awaited_more);
    aside.hidden = refusals.root.hidden && awaited.root.hidden;
    const all = window.offered_rps * window.seconds;
    const refused = Object.values(window.rejected).reduce((sum, number) => sum + number, 0);
    write(offered.value, `${count(window.offered_rps)}/s`);
    write(offered.note, `${count(data.models)} models`);
    write(rejected.value, count(refused));
    write(rejected.note, all ? percent(Math.min(1, refused / all)) : "");
    drawReasons(reasons, window.rejected);
    write(late.value, count(window.late));
    write(late.note, all ? percent(Math.min(1, window.late / all)) : "");
    write(cold.value, count(window.cold));
    const answered = window.in_time_rps * window.seconds + window.late;
    write(cold.note, answered ? percent(Math.min(1, window.cold / answered)) : "");
    write(queued.value, count(data.queued));
    write(queued.note, "waiting now");
    cards.draw(data.workers, head, data.happenings);
    recent.draw(data.recent, head);
    deedsPanel.hidden = data.operations.length === 0;
    keyed(deeds, data.operations, (line) => `${line.at_ns} ${line.what}`,
      (line) => el("li", {}, el("span", {}, el("b", {}, line.who), ` ${line.what}`), el("span.soft")),
      (node, line) => write(node.lastChild, ago(line.at_ns, head.now_ns)));
  }

  return {
    title: "Cluster",
    ask: { show: "cluster", params: { recent: 120 } },
    draw,
    close() {
      goodput.plot.close();
      latency.plot.close();
    },
  };
}
