// One request explained: what was planned, what happened, and why it could not be otherwise.

import { el, panel, put, write } from "../dom.js";
import { requestTable } from "../parts/requests.js";
import { byName, count, ms, when, words } from "../text.js";

function relative(at_ns, story) {
  const value = (at_ns - story.arrived_ns) / 1e6;
  return `${value < 0 ? "−" : "+"}${ms(Math.abs(value))}`;
}

/** A bar over the request's life: its steps as marks, its deadline as a line. */
function life(story) {
  const last = Math.max(...story.steps.map((step) => step.at_ns), story.deadline_ns ?? 0, story.earliest_finish_ns ?? 0, story.arrived_ns + 1);
  const share = (at_ns) => `${Math.max(0, Math.min(100, (100 * (at_ns - story.arrived_ns)) / (last - story.arrived_ns)))}%`;
  const bar = el("div.life", { role: "img", "aria-label": `${story.steps.map((step) => `${words(step.what)} at ${relative(step.at_ns, story)}`).join(", ")}${story.deadline_ns === null ? "" : `; deadline at ${relative(story.deadline_ns, story)}`}` });
  const began = story.steps.find((step) => step.what === "began");
  const ended = [...story.steps].reverse().find((step) => step.what === "ended");
  if (began && ended) {
    const run = el("i.run");
    run.style.left = share(began.at_ns);
    run.style.width = `calc(${share(ended.at_ns)} - ${share(began.at_ns)})`;
    bar.append(run);
  }
  for (const step of story.steps) {
    const mark = el("i.step", { "data-what": step.what, title: `${words(step.what)} ${relative(step.at_ns, story)}` });
    mark.style.left = share(step.at_ns);
    bar.append(mark);
  }
  for (const [name, at_ns] of [["deadline", story.deadline_ns], ["earliest finish", story.earliest_finish_ns]]) {
    if (at_ns === null) continue;
    const line = el("i.limit", { "data-what": name }, el("span", {}, `${name} ${relative(at_ns, story)}`));
    line.style.left = share(at_ns);
    line.classList.toggle("right", at_ns - story.arrived_ns > 0.6 * (last - story.arrived_ns));
    bar.append(line);
  }
  return bar;
}

function steps(story) {
  return el("ol.story", { "aria-label": "What happened" }, ...story.steps.map((step) =>
    el("li", { "data-what": step.what }, el("span.when", {}, relative(step.at_ns, story)), el("b", {}, words(step.what)),
      el("span", {}, step.text, step.action === null ? null : el("span.soft", {}, ` · action ${step.action}`)))));
}

function verdict(one) {
  if (one.chosen) return ["in_time", "chosen"];
  if (one.feasible) return ["waiting", "possible"];
  return ["failed", one.finish_ns === null ? "impossible" : "too late"];
}

function alternatives(story) {
  const rows = byName(story.alternatives, (one) => one.worker).map((one) => {
    const [kind, text] = verdict(one);
    return el("tr", { role: "row" }, el("th", { scope: "row", role: "rowheader" }, el("a", { href: `#/schedule/${encodeURIComponent(one.worker)}` }, one.worker)),
      el("td", { role: "cell" }, el("span.mark", { "data-is": kind }, text)),
      el("td.n", { role: "cell" }, one.finish_ns === null ? "–" : relative(one.finish_ns, story)),
      el("td.why", { role: "cell" }, one.text));
  });
  return el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Alternatives" }, el("table.stacked", { role: "table", "aria-label": "Alternatives" },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...["Worker", "Verdict", "Would finish", "Why"].map((text, at) => el(at === 2 ? "th.n" : "th", { scope: "col", role: "columnheader" }, text)))),
    el("tbody", { role: "rowgroup" }, ...rows)));
}

function facts(story, head) {
  const entries = [
    ["Model", el("a", { href: `#/model/${encodeURIComponent(story.model)}` }, story.model)],
    ["Arrived", when(story.arrived_ns, head, 6)],
    ["Deadline", story.deadline_ns === null ? "none (best effort)" : `${relative(story.deadline_ns, story)} after arrival`],
    ["Rows", count(story.rows)],
    ["Priority", String(story.priority)],
  ];
  if (story.reason) entries.push(["Reason", words(story.reason)]);
  if (story.earliest_finish_ns !== null) entries.push(["Earliest finish", relative(story.earliest_finish_ns, story)]);
  return el("dl.facts", {}, ...entries.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function searchForm(app, id) {
  const input = el("input.wide", { type: "search", "aria-label": "Request id", placeholder: "Id, or the beginning of one", value: /^\d+$/.test(id) ? id : "", spellcheck: "false", autocomplete: "off" });
  const form = el("form.row.end", { role: "search", "aria-label": "Explain a request" }, input, el("button.main", { type: "submit" }, "Explain"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (text) app.go(`#/request/${encodeURIComponent(text)}`);
  });
  return form;
}

function shortcuts() {
  return el("p.row.small", {}, ...[["last-rejected", "Newest rejected"], ["last-late", "Newest late"], ["last", "Newest of all"]]
    .map(([id, text]) => el("a", { href: `#/request/${id}` }, text)));
}

function listView(root, app) {
  const table = requestTable("Rejected, late and lost requests", "Nothing was rejected, late or lost in the last minutes.");
  const box = panel("Rejected, late and lost", shortcuts());
  box.append(table.root);
  root.append(el("div.head", {}, el("h1", {}, "Requests"), searchForm(app, "")), box);
  return {
    title: "Requests",
    ask: { show: "recent", params: { limit: 200 }, every_ms: 250 },
    draw: (data, head) => table.draw(Array.isArray(data) ? data : data.requests ?? data.recent, head),
  };
}

/** The view; `id` is the request's, the beginning of one or last-rejected and the like; empty for a list. */
export function request(root, id, app) {
  if (!id) return listView(root, app);
  const outcome = el("span.mark.large");
  const summary = el("p.summary");
  const body = el("div.explained");
  const missing = el("section.panel.empty", { hidden: true });
  root.append(el("nav.crumbs", { "aria-label": "Where this is" }, el("a", { href: "#/request" }, "Requests")),
    el("div.head", {}, el("h1.break", {}, el("span", {}, "Request "), el("span.mono", {}, id)), outcome, searchForm(app, id)), missing, summary, body);
  let drawn = "";
  return {
    title: `Request ${id}`,
    ask: { show: "request", params: { id }, every_ms: 500 },
    failed(text) {
      missing.hidden = false;
      write(missing, text);
      return true;
    },
    draw(story, head) {
      const key = JSON.stringify(story);
      if (key === drawn) return;
      drawn = key;
      missing.hidden = true;
      write(root.querySelector("h1 .mono"), story.id);
      put(outcome, "data-is", story.outcome);
      write(outcome, words(story.outcome));
      write(summary, story.summary);
      const happened = panel("What happened");
      happened.append(life(story), steps(story));
      const about = panel("The request");
      about.append(facts(story, head));
      const others = panel("What each worker could have done", el("span.soft.small", {}, `at the choice, ${relative(story.decided_ns, story)}`));
      others.append(story.alternatives.length ? alternatives(story) : el("p.empty", {}, "No worker was considered for it, or it was not recorded."));
      if (story.more) others.append(el("p.soft.small", {}, `and ${count(story.more)} more workers`));
      body.replaceChildren(el("div.two", {}, happened, about), others);
    },
  };
}
