// Changing what is served: with a token, after a question, and into the event log.

import { el, keyed, panel, put, write } from "../dom.js";
import { call, token } from "../link.js";
import { COMMANDS, operator, refusal } from "../parts/commands.js";
import { ago, byName } from "../text.js";

const SEARCH_MS = 150;

function tokenPanel(changed) {
  const input = el("input", { type: "password", id: "operate-token", autocomplete: "off", spellcheck: "false", placeholder: "Token" });
  const state = el("span.soft.small", { role: "status" });
  const say = () => write(state, token.get() ? "A token is kept for this tab, until it is closed." : "No token is entered.");
  const form = el("form.row", {}, el("label", { for: "operate-token" }, "Token"), input, el("button", { type: "submit" }, "Use it"),
    el("button.plain", { type: "button", onclick: () => { token.set(""); say(); changed(); } }, "Forget the token"), state);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!input.value.trim()) return;
    token.set(input.value.trim());
    input.value = "";
    say();
    changed();
  });
  say();
  const root = panel("Permission");
  root.append(form);
  return root;
}

function workersPanel(act) {
  const list = el("ul.placements");
  const empty = el("p.empty", {}, "No worker has joined.");
  const root = panel("Workers");
  root.append(list, empty);
  return {
    root,
    draw(workers, allowed) {
      empty.hidden = workers.length > 0;
      keyed(list, byName(workers), (worker) => worker.name, (worker) => {
        const state = el("span.mark");
        const button = el("button.end", { type: "button", onclick: () => act(COMMANDS[button.dataset.command](worker.name)) });
        const item = el("li", {}, el("b", {}, worker.name), state, button);
        return Object.assign(item, { state, button });
      }, (item, worker) => {
        put(item.state, "data-is", worker.state);
        write(item.state, worker.state);
        const command = worker.state === "draining" ? "resume" : "drain";
        put(item.button, "data-command", command);
        write(item.button, `${command === "resume" ? "Resume" : "Drain"} ${worker.name}`);
        item.button.disabled = !allowed || worker.state === "gone";
      });
    },
  };
}

/** How many workers of a kind run, what they cost, and how well they serve; refused requests count for none. */
export function howItStands(kind) {
  const leaving = kind.leaving.length ? `, ${kind.leaving.length} about to leave` : "";
  const price = kind.price ? `, ${kind.price} an hour each` : "";
  const answered = kind.in_time + kind.late;
  const share = answered ? `, ${((100 * kind.in_time) / answered).toFixed(2)} % of ${answered} answers in time` : "";
  return `${kind.running} of ${kind.wanted} run${leaving}${price}${share}${kind.fault ? `; ${kind.fault}` : ""}`;
}

function kindsPanel(act) {
  const list = el("ul.placements");
  const root = panel("How many workers");
  root.append(list);
  return {
    root,
    draw(kinds, allowed) {
      root.hidden = kinds.length === 0;
      keyed(list, kinds, (kind) => kind.kind, (kind) => {
        const state = el("span.soft.small");
        const input = el("input", { type: "number", min: "0", step: "1", value: String(kind.wanted), "aria-label": `Workers of kind ${kind.kind}` });
        const button = el("button.end", { type: "button" }, `Scale ${kind.kind}`);
        const item = el("li", {}, el("b", {}, kind.kind), state, input, button);
        button.addEventListener("click", () => {
          if (input.value !== "" && input.validity.valid) act(COMMANDS.scale(kind.kind, Number(input.value), item.wanted));
          else input.focus();
        });
        return Object.assign(item, { state, button, input, wanted: kind.wanted });
      }, (item, kind) => {
        item.wanted = kind.wanted;
        write(item.state, howItStands(kind));
        put(item.input, "max", String(kind.most));
        item.button.disabled = !allowed || !kind.provider;
      });
    },
  };
}

function modelsPanel(act, first) {
  const names = el("datalist#operate-models");
  const input = el("input.wide", { type: "text", id: "operate-model", list: "operate-models", value: first, spellcheck: "false", autocomplete: "off", placeholder: "Name of a model" });
  const where = el("select", { id: "operate-worker" });
  const slo = el("input", { type: "number", id: "operate-slo", min: "0.1", step: "any", placeholder: "ms" });
  const named = (make) => () => {
    const model = input.value.trim();
    if (model) act(make(model));
    else input.focus();
  };
  const worker = () => where.value || null;
  const buttons = [
    ["Pin", named((model) => COMMANDS.pin(model))], ["Unpin", named((model) => COMMANDS.unpin(model))],
    ["Load", named((model) => COMMANDS.load(model, worker()))], ["Unload", named((model) => COMMANDS.unload(model, worker()))],
    ["Set default SLO", named((model) => COMMANDS.slo(model, slo.value === "" ? null : Number(slo.value)))],
  ].map(([text, run]) => el("button", { type: "button", onclick: run }, text));
  const root = panel("Models");
  root.append(
    el("div.fields", {}, el("label", { for: "operate-model" }, "Model"), input, names),
    el("div.row", {}, ...buttons.slice(0, 2)),
    el("div.fields", {}, el("label", { for: "operate-worker" }, "On"), where),
    el("div.row", {}, ...buttons.slice(2, 4)),
    el("div.fields", {}, el("label", { for: "operate-slo" }, "Default SLO, ms (empty: as configured)"), slo),
    el("div.row", {}, buttons[4]));
  let due = 0;
  input.addEventListener("input", () => {
    clearTimeout(due);
    due = setTimeout(async () => {
      const found = await call(`models?limit=20&search=${encodeURIComponent(input.value.trim())}`).catch(() => null);
      if (found) names.replaceChildren(...found.data.rows.map((line) => el("option", { value: line.name })));
    }, SEARCH_MS);
  });
  return {
    root,
    draw(workers, allowed) {
      for (const button of buttons) button.disabled = !allowed;
      keyed(where, [{ name: "" }, ...byName(workers.filter((one) => one.state !== "gone"))], (one) => one.name || "any",
        (one) => el("option", { value: one.name }, one.name || "any worker"), () => {});
    },
  };
}

function logPanel() {
  const list = el("ul.deeds");
  const empty = el("p.empty", {}, "No operator has changed anything yet.");
  const root = panel("What operators did");
  root.append(list, empty);
  return {
    root,
    draw(operations, head) {
      empty.hidden = operations.length > 0;
      keyed(list, operations, (line) => `${line.at_ns} ${line.what}`,
        (line) => el("li", {}, el("span", {}, el("b", {}, line.who), ` ${line.what}`), el("span.soft")),
        (node, line) => write(node.lastChild, ago(line.at_ns, head.now_ns)));
    },
  };
}

/** The view; the address may name a model: #/operate?model=NAME. */
export function operate(root, rest, app, params) {
  const { result, act } = operator();
  const why = el("p.why-not");
  let last = null;

  const workers = workersPanel(act);
  const kinds = kindsPanel(act);
  const models = modelsPanel(act, params.get("model") ?? "");
  const log = logPanel();
  const permission = tokenPanel(() => last && view.draw(last.data, last.head));
  root.append(el("div.head", {}, el("h1", {}, "Operate")), why, permission, result, el("div.two.even", {}, models.root, el("div", {}, kinds.root, workers.root)), log.root);

  const view = {
    title: "Operate",
    ask: { show: "cluster", params: { recent: 0 }, every_ms: 250 },
    draw(data, head) {
      last = { data, head };
      const no = refusal(head);
      write(why, no);
      why.hidden = no === "";
      workers.draw(data.workers, no === "");
      kinds.draw(data.kinds, no === "");
      models.draw(data.workers, no === "");
      log.draw(data.operations, head);
    },
  };
  return view;
}
