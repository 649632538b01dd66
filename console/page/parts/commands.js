// What an operator may ask for, on the page of what it is about as well as on the view for operating.

import { el, panel, put, write } from "../dom.js";
import { call, token } from "../link.js";
import { words } from "../text.js";
import { confirmed } from "./dialog.js";

/** Every command: what it is called, the question before it, and its fields as messages/operating.py has them. */
export const COMMANDS = {
  drain: (worker) => ({ title: `Drain ${worker}?`, text: "It finishes what it was told to do and is given nothing more, until it is resumed. Its memory stays as it is.", verb: "Drain", command: { type: "drain_worker", worker } }),
  resume: (worker) => ({ title: `Resume ${worker}?`, text: "It is given work again.", verb: "Resume", command: { type: "resume_worker", worker } }),
  scale: (kind, count, now) => ({ title: `Have ${count} worker${count === 1 ? "" : "s"} of kind ${kind}?`, text: count < now ? "Others load what only those hold that leave; they finish what they were told to do and are stopped." : "New ones prepare and load models before they get requests.", verb: "Scale", command: { type: "scale_workers", kind, count } }),
  pin: (model) => ({ title: `Pin ${model}?`, text: "It is loaded if it is nowhere, and its last copy is never evicted.", verb: "Pin", command: { type: "pin_model", model } }),
  unpin: (model) => ({ title: `Unpin ${model}?`, text: "It may be evicted again.", verb: "Unpin", command: { type: "unpin_model", model } }),
  load: (model, worker) => ({ title: `Load ${model}?`, text: `On ${worker ?? "the worker with the most free pages"}; the least recently used models go if there is no room.`, verb: "Load", command: { type: "load_on", model, worker } }),
  unload: (model, worker) => ({ title: `Unload ${model}?`, text: `From ${worker ?? "every worker"}; the next request for it has it loaded again.`, verb: "Unload", command: { type: "unload_from", model, worker } }),
  slo: (model, value_ms) => ({
    title: value_ms === null ? `Take ${model}'s default SLO back?` : `Set ${model}'s default SLO to ${value_ms} ms?`,
    text: value_ms === null ? "Its requests that bring no SLO over HTTP and gRPC get the configured one again." : "Its requests that bring no SLO over HTTP and gRPC get this one.",
    verb: "Set", command: { type: "set_default_slo", model, slo_ns: value_ms === null ? null : Math.round(value_ms * 1e6) },
  }),
};

/** Why nothing can be changed here, or an empty text. */
export function refusal(head) {
  if (head.state === "recorded") return "This is a recorded run: nothing can be changed in it.";
  if (!head.operable) return "Changes are turned off here. Make a file of tokens with “mainspring token new” and name it as token_file in the table [console] of mainspring.toml.";
  return token.get() ? "" : "Enter a token first: changes are made in its name.";
}

/** What asks for commands and says what came of them: `act(command)` asks first; `result` is where the answer stands. */
export function operator() {
  const result = el("p.result", { role: "status", hidden: true });

  function said(text, good) {
    result.hidden = false;
    put(result, "data-good", String(good));
    write(result, `${good ? "✓" : "✕"} ${text}`);
  }

  async function act({ title, text, verb, command }) {
    if (!(await confirmed(title, text, verb))) return;
    try {
      const answer = await call("operate", { command });
      said(answer.detail || words(command.type), answer.done);
    } catch (error) {
      said(error.message, false);
    }
  }

  return { result, act };
}

/**
 * A panel of buttons on the page of a worker or a model. `buttons(act)` returns the elements; `draw(head)` says why
 * nothing can be changed here, or lets them be pressed. Where changes are turned off there is no panel.
 */
export function commandPanel(buttons) {
  const { result, act } = operator();
  const row = el("div.row", {}, ...buttons(act));
  const why = el("p.soft.small.why-here");
  const root = panel("Operate");
  root.hidden = true;
  root.append(row, why, result);
  return {
    root,
    draw(head) {
      root.hidden = !head.operable || head.state === "recorded";
      const no = refusal(head);
      why.hidden = no === "";
      why.replaceChildren(no, " ", el("a", { href: "#/operate" }, "Enter a token"));
      for (const button of row.querySelectorAll("button")) button.disabled = no !== "" || button.dataset.off === "true";
    },
  };
}
