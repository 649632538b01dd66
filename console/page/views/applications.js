// Applications: which of their members they trust, what that costs, and what became of feedback.

import { el, keyed, panel, put, write } from "../dom.js";
import { tint } from "../palette.js";
import { chart, legend } from "../parts/chart.js";
import { Cursor } from "../parts/cursor.js";
import { count, percent, plural } from "../text.js";

const SECONDS = 300;
/** Members that the chart has lines of; the table has all. */
const MOST_LINES = 12;
const COLUMNS = ["Member", "Weight", "Mean loss", "Rows judged", "Asked", "Missing"];
const NONE = "–";

const three = (value) => (value === null ? NONE : value.toFixed(3));

/** What an application's figures are called, and what they are. */
const FIGURES = [
  ["Requests", (one) => count(one.requests)],
  ["Rows", (one) => count(one.rows)],
  ["Confidence", (one) => three(one.confidence)],
  ["Rows with the default", (one) => count(one.defaults)],
  ["Predictions missing", (one) => count(one.missing)],
  ["Mean loss", (one) => three(one.loss)],
  ["Regret", (one) => (one.regret === null ? NONE : one.regret.toFixed(1))],
  ["Feedback joined", (one) => count(one.joined)],
  ["Feedback late", (one) => count(one.late)],
  ["Feedback duplicate", (one) => count(one.duplicate)],
  ["Feedback unknown", (one) => count(one.unknown)],
  ["Answers waiting", (one) => count(one.waiting)],
  ["Contexts", (one) => (one.context ? count(one.contexts) : NONE)],
  ["Version", (one) => one.versions.join(", ") || NONE],
  ["Policy raised", (one) => count(one.policy_failed)],
];

function memberRow(member) {
  const swatch = el("i.swatch");
  tint(swatch, member.name);
  const link = el("a", { href: `#/model/${encodeURIComponent(member.name.replace(/:\d+$/, ""))}` }, member.name);
  const fault = el("span.tag.warn", { hidden: true }, "left out");
  const cells = COLUMNS.slice(1).map(() => el("td.n"));
  const row = el("tr", {}, el("th", { scope: "row" }, el("div.named", {}, swatch, link, fault)), ...cells);
  return Object.assign(row, { cells_: cells, fault });
}

function writeMember(row, member) {
  row.fault.hidden = !member.fault;
  put(row.fault, "title", member.fault || null);
  [percent(member.weight), three(member.loss), count(member.judged), count(member.asked), count(member.missing)]
    .forEach((text, at) => write(row.cells_[at], text));
}

/** The lines of the members' weights; made anew where there are other members. */
function weights(cursor) {
  const holder = el("div.weights");
  let plot = null;
  let names = "";
  function make(application, members) {
    plot?.close();
    const layers = members.map((member, at) => ({
      name: member.name, model: member.name, line: true, pick: (series) => series.members[at].weights,
    }));
    const tall = el("div.tall");
    holder.replaceChildren(legend(layers), tall);
    plot = chart(tall, { layers, unit: percent, axis: "share of the weights", label: `Weights of ${application.name}, each second`, cursor, least: 1 });
  }
  return {
    root: holder,
    close: () => plot?.close(),
    draw(application, head) {
      const members = application.members.slice(0, MOST_LINES);
      const now = members.map((member) => member.name).join("\n");
      holder.hidden = members.length === 0;
      if (!members.length) return;
      if (now !== names) make(application, members);
      names = now;
      plot.set({ first_ns: application.first_ns, members }, SECONDS, head);
    },
  };
}

function card(cursor) {
  return (application) => {
    const tags = [application.policy, application.kind].map((text) => el("span.tag", {}, text));
    const from = el("span.soft");
    const root = panel(application.name, from);
    root.firstChild.firstChild.after(...tags);
    const fault = el("p.warn", { role: "status", hidden: true });
    const values = FIGURES.map(() => el("dd"));
    const figures = el("dl.figures", {}, ...FIGURES.map(([name], at) => el("div", {}, el("dt", {}, name), values[at])));
    const plot = weights(cursor);
    const body = el("tbody");
    const heads = COLUMNS.map((name, at) => el("th", { scope: "col", class: at ? "n" : null }, name));
    const table = el("table", { "aria-label": `Members of ${application.name}` }, el("thead", {}, el("tr", {}, ...heads)), body);
    const scroller = el("div.scroll", { tabindex: "0", role: "region", "aria-label": `Members of ${application.name}, scrollable` }, table);
    root.append(fault, figures, plot.root, scroller);
    return Object.assign(root, { tags, from, fault, values, plot, body, scroller });
  };
}

function writeCard(root, application, head) {
  write(root.tags[0], application.policy);
  write(root.tags[1], application.kind);
  write(root.from, plural(application.gateways.length, "gateway"));
  put(root.from, "title", application.gateways.join(", "));
  root.fault.hidden = !application.fault;
  write(root.fault, application.fault);
  FIGURES.forEach(([, pick], at) => write(root.values[at], pick(application)));
  root.plot.draw(application, head);
  root.scroller.hidden = application.members.length === 0;
  keyed(root.body, application.members, (member) => member.name, memberRow, writeMember);
}

/** The view. */
export function applications(root) {
  const total = el("span.soft", { role: "status" });
  const cursor = new Cursor(() => {});
  const list = el("div.stack");
  const empty = el("p.empty", { hidden: true });
  root.append(el("div.head", {}, el("h1", {}, "Applications"), total), list, empty);
  return {
    title: "Applications",
    ask: { show: "applications", params: {}, every_ms: 1000 },
    draw(data, head) {
      const shown = data.applications;
      write(total, data.more ? `${count(shown.length)} of ${count(shown.length + data.more)}` : plural(shown.length, "application"));
      empty.hidden = shown.length > 0;
      write(empty, head.state === "recorded"
        ? "A log does not have what applications learnt: only a live console shows it."
        : "No gateway serves an application.");
      for (const node of list.children) if (!shown.some((one) => one.name === node.name_)) node.plot.close();
      keyed(list, shown, (one) => one.name, card(cursor), (node, one) => {
        node.name_ = one.name;
        writeCard(node, one, head);
      });
    },
    close() {
      for (const node of list.children) node.plot.close();
    },
  };
}
