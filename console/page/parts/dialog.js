// Questions to the operator, as the browser's own modal dialogs.

import { el } from "../dom.js";

function asked(dialog) {
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    }, { once: true });
  });
}

/** Ask whether to do something; resolves to true or false. */
export async function confirmed(title, text, verb) {
  const dialog = el("dialog", { "aria-labelledby": "dialog-title", "aria-describedby": "dialog-text" },
    el("h2#dialog-title", {}, title), el("p#dialog-text", {}, text));
  dialog.append(el("div.row", {},
    el("button", { type: "button", onclick: () => dialog.close("") }, "Cancel"),
    el("button.main", { type: "button", onclick: () => dialog.close("yes") }, verb)));
  return (await asked(dialog)) === "yes";
}

/** Ask for a token; resolves to its text, empty if there is none. */
export function askToken(why) {
  if (document.querySelector("dialog[open]")) return Promise.resolve("");
  const input = el("input", { type: "password", autocomplete: "off", "aria-label": "Token", spellcheck: "false" });
  const dialog = el("dialog", { "aria-labelledby": "dialog-title" },
    el("h2#dialog-title", {}, "This console needs a token"), el("p", {}, why || "To see anything, show a token."), input);
  const take = () => dialog.close(input.value.trim());
  input.addEventListener("keydown", (event) => event.key === "Enter" && take());
  dialog.append(el("div.row", {},
    el("button", { type: "button", onclick: () => dialog.close("") }, "Cancel"),
    el("button.main", { type: "button", onclick: take }, "Show it")));
  return asked(dialog);
}
