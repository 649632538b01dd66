// One device's memory: which pages hold which model, which are free, and who had to go for whom.

import { el, fill, keyed, panel, put, write } from "../dom.js";
import { call } from "../link.js";
import { tint } from "../palette.js";
import { pageMap } from "../parts/page_map.js";
import { pairs } from "../parts/canvas.js";
import { UNSEEN, ago, byName, bytes, count, plural, whole } from "../text.js";

const WORKERS_MS = 2000;
const LISTS_MS = 1000;
const MOST_MODELS = 400;

function to(name) {
  return `#/model/${encodeURIComponent(name)}`;
}

function pagesText([first, number]) {
  return number === 1 ? `page ${first}` : `pages ${first} to ${first + number - 1}`;
}

/** What each model holds: {name, pages, extents, state, used}, most pages first. */
function holdings(data) {
  const found = data.models.map((name, at) => ({ name, at, pages: 0, extents: 0, state: "resident", used: data.last_used_ns[at] }));
  for (const [, number, owner, state] of data.extents) {
    if (owner < 0) continue;
    found[owner].pages += number;
    found[owner].extents += 1;
    found[owner].state = state;
  }
  return found.sort((a, b) => b.pages - a.pages || (a.name < b.name ? -1 : 1));
}

function workerTabs(app) {
  const list = el("nav.workers", { "aria-label": "Workers" });
  function make(worker) {
    const bar = el("i");
    const text = el("small");
    const link = el("a", { href: `#/memory/${encodeURIComponent(worker.name)}` }, el("span", {}, worker.name), el("b", { "aria-hidden": "true" }, bar), text);
    link.bar = bar;
    link.note = text;
    return link;
  }
  return {
    root: list,
    draw(workers, current) {
      keyed(list, workers, (worker) => worker.name, make, (link, worker) => {
        const used = worker.pages - worker.pages_free;
        fill(link.bar, worker.pages ? used / worker.pages : 0);
        write(link.note, worker.state === "serving" ? `${count(worker.pages_free)} free` : worker.state);
        put(link, "aria-current", worker.name === current ? "true" : null);
      });
    },
  };
}

function factsPanel() {
  const names = ["Pages", "Free", "Longest free run", "Models", "Loading", "Page size"];
  const values = names.map((name) => el("dd", { "data-fact": name.toLowerCase() }));
  const list = el("dl.figures", {}, ...names.map((name, at) => el("div", {}, el("dt", {}, name), values[at])));
  return {
    root: list,
    draw(data, held) {
      const longest = data.extents.reduce((most, [, number, owner]) => (owner < 0 ? Math.max(most, number) : most), 0);
      const loading = held.filter((one) => one.state === "loading").length;
      const share = data.pages ? ` (${whole(data.pages_free / data.pages)})` : "";
      const texts = [count(data.pages), count(data.pages_free) + share, count(longest), count(held.length - loading), count(loading), bytes(data.page_bytes)];
      texts.forEach((text, at) => write(values[at], text));
    },
  };
}

function modelsTable(pick) {
  const body = el("tbody");
  const table = el("table", { "aria-label": "Models in this memory" }, el("thead", {}, el("tr", {},
    el("th", { scope: "col" }, "Model"), el("th.n", { scope: "col" }, "Pages"), el("th.n", { scope: "col" }, "Extents"),
    el("th", { scope: "col" }, "State"), el("th.n", { scope: "col" }, "Last used"))), body);
  const more = el("p.soft.small");
  const root = panel("Models in memory");
  root.append(el("div.scroll.tall-list", { tabindex: "0", role: "region", "aria-label": "Models in this memory" }, table), more);
  function make(one) {
    const parts = { swatch: el("i.swatch"), pages: el("td.n"), extents: el("td.n"), state: el("span.mark"), used: el("td.n.soft") };
    tint(parts.swatch, one.name);
    const row = el("tr", { onpointerenter: () => pick(row.at), onpointerleave: () => pick(null) },
      el("td", {}, parts.swatch, el("a", { href: to(one.name), onfocus: () => pick(row.at), onblur: () => pick(null) }, one.name)),
      parts.pages, parts.extents, el("td", {}, parts.state), parts.used);
    row.parts = parts;
    return row;
  }
  return {
    root,
    draw(held, head) {
      keyed(body, held.slice(0, MOST_MODELS), (one) => one.name, make, (row, one) => {
        row.at = one.at;
        write(row.parts.pages, count(one.pages));
        write(row.parts.extents, count(one.extents));
        put(row.parts.state, "data-is", one.state);
        write(row.parts.state, one.state);
        write(row.parts.used, one.used === null ? UNSEEN : ago(one.used, head.now_ns));
      });
      write(more, held.length > MOST_MODELS ? `and ${count(held.length - MOST_MODELS)} smaller ones, in the map` : "");
    },
  };
}

function evictionsPanel() {
  const list = el("ol.evictions");
  const empty = el("p.empty", {}, "Nothing was evicted in the last minutes.");
  const root = panel("Evicted");
  root.append(el("div.tall-list", { tabindex: "0", role: "region", "aria-label": "Evicted models" }, list), empty);
  return {
    root,
    draw(evictions, head) {
      empty.hidden = evictions.length > 0;
      keyed(list, evictions, (one) => `${one.at_ns} ${one.model}`, (one) => {
        const reason = el("span.soft");
        const when = el("span.soft.small");
        const swatch = el("i.swatch");
        tint(swatch, one.model);
        const item = el("li", {}, el("div", {}, swatch, el("a", { href: to(one.model) }, one.model), el("span.soft", {}, ` · ${plural(one.pages, "page")}`)), when, reason);
        Object.assign(item, { reason, when });
        return item;
      }, (item, one) => {
        write(item.when, ago(one.at_ns, head.now_ns));
        if (item.purpose !== one.for_model) {
          item.purpose = one.for_model;
          item.reason.replaceChildren(...(one.for_model ? ["made room for ", el("a", { href: to(one.for_model) }, one.for_model)] : ["its pages are not used again yet"]));
        }
      });
    },
  };
}

/** The view; `name` is the worker's, empty for the first one. */
export function memory(root, name, app) {
  let data = null;
  let head = null;
  let drawn = "";
  let later = 0;
  let listed_ms = -LISTS_MS;
  const holder = el("div.map");
  const said = el("p.said", { "aria-live": "polite" });
  const hint = "Point at a page, or reach the map with Tab and use the arrow keys; Enter opens the model.";
  const map = pageMap(holder, {
    chosen: (extent) => write(said, extent ? describe(extent) : hint),
    open: ([, , owner]) => owner >= 0 && app.go(to(data.models[owner])),
    words: (extent) => box(extent),
  });
  const tabs = workerTabs(app);
  const facts = factsPanel();
  const mapPanel = panel("Pages", el("div.legend", {}, el("span", {}, el("i.free"), "free"), el("span", {}, el("i.held"), "a colour for each model"), el("span", {}, el("i.loading"), "loading")));
  mapPanel.append(facts.root, holder, said);
  write(said, hint);
  const table = modelsTable((owner) => data && map.pick(owner));
  const evictions = evictionsPanel();
  const heading = el("h1", {}, name ? `Memory of ${name}` : "Memory");
  const none = el("p.empty", { hidden: true }, "No worker has joined yet.");
  root.append(el("div.head", {}, heading), tabs.root, none, mapPanel, el("div.two.even", {}, table.root, evictions.root));

  function describe(extent) {
    const [, number, owner, state] = extent;
    if (owner < 0) return `${pagesText(extent)}: free (${plural(number, "page")}).`;
    return `${pagesText(extent)}: ${data.models[owner]}, ${state}, last used ${data.last_used_ns[owner] === null ? UNSEEN : ago(data.last_used_ns[owner], head.now_ns)}.`;
  }

  function box(extent) {
    const [, , owner, state] = extent;
    if (owner < 0) return [el("b", {}, "free"), pairs([["Run", pagesText(extent)]])];
    const own = data.extents.filter((one) => one[2] === owner);
    const swatch = el("i.swatch");
    tint(swatch, data.models[owner]);
    return [el("b", {}, swatch, data.models[owner]), pairs([
      ["State", state], ["Extent", pagesText(extent)],
      ["In all", `${plural(own.reduce((sum, one) => sum + one[1], 0), "page")}, ${plural(own.length, "extent")}`],
      ["Last used", data.last_used_ns[owner] === null ? UNSEEN : ago(data.last_used_ns[owner], head.now_ns)],
    ])];
  }

  function list(held) {
    listed_ms = performance.now();
    table.draw(held, head);
    evictions.draw(data.evictions, head);
  }

  async function look() {
    try {
      const found = await call("cluster?recent=0");
      const workers = byName(found.data.workers);
      none.hidden = workers.length > 0;
      if (!name && workers.length) {
        name = workers[0].name;
        write(heading, `Memory of ${name}`);
        app.rename(`#/memory/${encodeURIComponent(name)}`);
        view.ask = { show: "memory", params: { worker: name } };
        app.show("memory", view.ask.params, 100);
      }
      tabs.draw(workers, name);
    } catch {
      // The connection's own notice says that the console can't be reached.
    }
  }
  const timer = setInterval(() => document.hidden || look(), WORKERS_MS);
  look();

  const view = {
    title: name ? `Memory of ${name}` : "Memory",
    ask: name ? { show: "memory", params: { worker: name } } : { show: "cluster", params: {}, every_ms: 60_000 },
    draw(found, now) {
      if (!found.extents) return;
      head = now;
      data = found;
      // The pictures are equal but for ages most of the time: the map is drawn only when pages changed hands.
      const key = `${found.extents.join(";")}|${found.models.join()}`;
      const held = holdings(found);
      if (key !== drawn) {
        drawn = key;
        map.set(found, `Pages of ${found.worker}: ${found.pages - found.pages_free} of ${found.pages} in use by ${found.models.length} models. Arrow keys move from extent to extent.`);
        facts.draw(found, held);
      }
      // Lists that people read are brought up to date once a second.
      clearTimeout(later);
      later = setTimeout(() => list(held), Math.max(0, LISTS_MS - (performance.now() - listed_ms)));
    },
    close() {
      clearInterval(timer);
      clearTimeout(later);
      map.close();
    },
  };
  return view;
}
