// Starts the page: the theme, the connection, and which view the address names.
//
// A view is a function (root, rest, app, params) of an empty element, what follows its name in the address, `app`,
// and the address's parameters (address.js). It returns {title, ask: {show, params, every_ms}, draw(data, head, message), take?(message), close?(), key?(event)}: `draw` is called
// on a frame for the newest picture of its show, `take` for every picture as it comes.

import { keep, parsed, readable } from "./address.js";
import { el, icon, put, write } from "./dom.js";
import { Link, call, token } from "./link.js";
import { learn, refresh } from "./palette.js";
import { player } from "./parts/player.js";
import { Place } from "./place.js";
import { clock, span, when, zone } from "./text.js";
import { askToken } from "./parts/dialog.js";
import { applications } from "./views/applications.js";
import { cluster } from "./views/cluster.js";
import { memory } from "./views/memory.js";
import { model } from "./views/model.js";
import { models } from "./views/models.js";
import { operate } from "./views/operate.js";
import { request } from "./views/request.js";
import { schedule } from "./views/schedule.js";
import { worker } from "./views/worker.js";

const VIEWS = { cluster, worker, memory, schedule, models, model, applications, request, operate };
const RAIL = { model: "models", worker: "cluster" };
const THEMES = {
  "": ["as the system", "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16"],
  light: ["light", "M12 8a4 4 0 1 0 .01 0zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M19 5l-1.4 1.4M6.4 17.6L5 19"],
  dark: ["dark", "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z"],
};
const KEPT_THEME = "mainspring.theme";
const COLOURS_MS = 2000;

const byId = (id) => document.getElementById(id);
const main = byId("main");
let view = null;
let current = "";
let newest = null;
let head = null;

const link = new Link({ take, draw, failed, changed, needsToken });
const place = new Place((to) => link.seek(to), (changes) => app.keep(changes));
const playing = player(byId("player"), (to) => place.seek(to));

/** What views may use of the page. */
const app = {
  show: (show, params, every_ms) => link.show(show, params, every_ms),
  head: () => head,
  /** Whether what is shown is of the instant that the address names. */
  settled: () => place.settled,
  go: (hash) => { location.hash = hash; },
  /** Change what the address names; its parameters, the browser's history and the view stay. */
  rename(path) {
    const query = current.split("?")[1];
    current = keep({}, query ? `${path}?${query}` : path);
  },
  /** Set parameters of the address: what is looked at changed, by the same view. */
  keep(changes) {
    current = keep(changes, current);
  },
};

function take(message) {
  head = message.head;
  if (message.same) {
    if (newest?.show === message.show) newest = { ...message, data: newest.data };
  } else newest = message;
  if (newest) view?.take?.(newest);
}

function draw() {
  changed();
  if (newest && newest.show === view?.ask.show) {
    if (newest.data !== undefined) {
      main.removeAttribute("aria-busy");
      notice.problem = "";
      if (byId("view").classList.contains("missing") && !view.nowhere) return again();
      view.draw(newest.data, newest.head, newest);
    }
  }
  playing.draw(newest?.replay ?? null, head);
  place.follow(newest?.replay ?? null, head);
  document.body.classList.toggle("recorded", Boolean(newest?.replay));
  changed();
}

const notice = { problem: "" };

function failed(error) {
  if (view?.failed?.(error.text) === true) return changed();
  // What does not exist, or no longer, has no numbers: those of another instant would be taken for its own.
  if (error.code === "unknown" && error.show === view?.ask.show) missing(error.text);
  else notice.problem = error.text;
  changed();
}

/** Show the connection's state, the time, and how old the picture is if nothing comes. */
function changed() {
  const state = link.silent ? "connecting" : head?.state ?? "connecting";
  const badge = byId("link");
  put(badge, "data-state", state);
  write(byId("link-text"), state.replace("_", " "));
  if (head) {
    write(byId("clock"), clock(head.now_ns, head));
    write(byId("zone"), zone.name(head.now_ns, head));
    write(byId("policy"), head.policy);
    linkShards(byId("shards"), head);
  }
  const old = head !== null && (state === "connecting" || state === "catching_up");
  document.body.classList.toggle("stale", old);
  let text = notice.problem;
  if (state === "connecting") {
    const who = link.silent ? "the console" : "the controller";
    const age = head && link.silent ? `, ${span((performance.now() - link.heard_ms) * 1e6)} ago` : "";
    text = head
      ? `Connecting to ${who}. What is shown was true at ${when(head.now_ns, head)}${age}.`
      : `Connecting to ${who}…`;
  }
  write(byId("notice"), text);
  byId("notice").hidden = text === "";
  byId("notice").classList.toggle("bad", text !== "" && text === notice.problem);
}

/** Link to the consoles of a cluster's other controllers; one that listens on this host is where this page is from. */
function linkShards(nav, { shard, shards }) {
  if (nav.childElementCount === (shards?.length ?? 0)) return;
  nav.replaceChildren(...shards.map((address, number) => {
    const link = document.createElement("a");
    const url = new URL(address);
    if (/^(localhost|127\..*|0\.0\.0\.0|\[::1?\])$/.test(url.hostname)) url.hostname = location.hostname;
    link.href = number === shard ? "#/cluster" : url.href;
    link.textContent = `shard ${number}`;
    if (number === shard) link.setAttribute("aria-current", "page");
    return link;
  }));
}

function needsToken(reason) {
  askToken(reason).then((text) => {
    if (text) {
      token.set(text);
      link.hurry();
    }
  });
}

/** Say in one sentence what is not there, in place of a view. */
function missing(text) {
  const root = byId("view");
  if (root.classList.contains("missing")) return;
  root.classList.add("missing");
  root.replaceChildren(el("h1", {}, "Not found"), el("p", { role: "status" }, text), el("p", {}, el("a", { href: "#/cluster" }, "To the cluster")));
  main.removeAttribute("aria-busy");
}

/** The view of an address that names none. */
function nowhere(name) {
  missing(`There is no view ${readable(name)}; the views are ${Object.keys(VIEWS).join(", ")}.`);
  return { title: "Not found", nowhere: true, ask: { show: "cluster", params: {}, every_ms: 60_000 }, draw() {} };
}

/** Make the view of this address afresh: what was not there is there now. */
function again() {
  current = "";
  route();
}

function route() {
  const hash = location.hash || "#/cluster";
  if (hash === current) return;
  current = hash;
  const { name, rest, params } = parsed(hash);
  place.open(params.get("at"));
  const made = VIEWS[name];
  view?.close?.();
  newest = null;
  notice.problem = "";
  const root = byId("view");
  root.replaceChildren();
  main.setAttribute("aria-busy", "true");
  root.className = `view-${made ? name : "none"}`;
  view = made ? made(root, rest, app, params) : nowhere(name);
  document.title = `${view.title} · Mainspring console`;
  for (const entry of document.querySelectorAll(".rail a")) {
    put(entry, "aria-current", entry.dataset.view === (RAIL[name] ?? name) ? "page" : null);
  }
  if (route.moved) main.focus({ preventScroll: true });
  route.moved = true;
  scrollTo(0, 0);
  link.show(view.ask.show, view.ask.params, view.ask.every_ms ?? 100);
  changed();
}

function dress(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  const [name, path] = THEMES[theme];
  const button = byId("theme");
  button.replaceChildren(icon(path));
  put(button, "aria-label", `Theme: ${name}`);
  put(button, "title", `Theme: ${name}`);
  refresh();
  dispatchEvent(new Event("theme"));
}

function keepTheme(theme) {
  try {
    localStorage.setItem(KEPT_THEME, theme);
  } catch {
    // A browser that keeps nothing shows the theme until the page is closed.
  }
}

/** Learn which models there are, so that each has a colour of its own; returns whether there are any. */
async function colours() {
  try {
    const { data } = await call("models?limit=200");
    learn(data.rows.map((line) => line.name), data.total);
    return data.total > 0;
  } catch {
    return false; // The connection's own notice says that the console can't be reached.
  }
}

/** Models that came after the page was opened get their colours once they are known. */
async function coloursLater() {
  if (await colours()) again();
  else setTimeout(coloursLater, COLOURS_MS);
}

async function start() {
  let theme = "";
  try {
    theme = localStorage.getItem(KEPT_THEME) ?? "";
  } catch {
    theme = "";
  }
  dress(theme in THEMES ? theme : "");
  byId("theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "") + 1) % names.length];
    keepTheme(next);
    dress(next);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dress(document.documentElement.dataset.theme ?? ""));
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  byId("find").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = byId("find-text").value.trim();
    byId("find-text").value = "";
    if (/^\d+$|^last/.test(text)) app.go(`#/request/${text}`);
    else if (text) app.go(`#/models?search=${encodeURIComponent(text)}`);
  });
  addEventListener("keydown", (event) => {
    if (event.target.closest?.("input, select, textarea, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      byId("find-text").focus();
    } else view?.key?.(event);
  });
  byId("zone").addEventListener("click", () => {
    zone.utc = !zone.utc;
    again();
  });
  addEventListener("hashchange", route);
  addEventListener("online", () => link.hurry());
  if (!(await Promise.race([colours(), wait(COLOURS_MS)]))) setTimeout(coloursLater, COLOURS_MS);
  route();
  link.connect();
}

function wait(length_ms) {
  return new Promise((resolve) => setTimeout(resolve, length_ms, false));
}

start();
