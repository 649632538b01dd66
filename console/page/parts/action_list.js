// What a timeline shows, as a table and as one action in full: the same for those who can't see the canvas.

import { el, keyed, panel, put, write } from "../dom.js";
import { clock, count, ns, plural } from "../text.js";
import { BATCH, BEGIN, DETAIL, DEVICE, EARLIEST, END, ID, KIND, LANE, LATEST, MODEL, PLAN_BEGIN, PLAN_END, REQUESTS, ROWS, WHY, beginOf, failed, fateOf, outstanding } from "./actions.js";

const MOST = 60;

function signed(value_ns) {
  return `${value_ns < 0 ? "−" : "+"}${ns(Math.abs(value_ns))}`;
}

/** How far what happened was from what was predicted: of the beginning and of the duration. */
function errors(action) {
  if (outstanding(action) || failed(action) || action[BEGIN] === null) return ["–", "–"];
  const took = action[END] - action[BEGIN];
  return [signed(action[BEGIN] - action[PLAN_BEGIN]), signed(took - (action[PLAN_END] - action[PLAN_BEGIN]))];
}

/** The pairs of name and value that describe an action. */
export function described(action, lanes, head) {
  const lane = lanes[action[LANE]];
  const [begin, duration] = errors(action);
  const at = (instant) => clock(instant, head, 6);
  const rows = [
    ["Where", `${lane.worker} ${lane.executor}`],
    ["Outcome", fateOf(action, head.now_ns)],
    ["Window", `${at(action[EARLIEST])} to ${at(action[LATEST])}`],
    ["Predicted", `${at(action[PLAN_BEGIN])}, ${ns(action[PLAN_END] - action[PLAN_BEGIN])}`],
  ];
  if (action[BEGIN] !== null && !failed(action)) {
    rows.push(["Actual", `${at(action[BEGIN])}${action[END] === null ? "" : `, ${ns(action[END] - action[BEGIN])}`}`], ["Off by", `${begin} begin, ${duration} duration`]);
    if (action[DEVICE] != null) rows.splice(-1, 0, ["Of these", `${ns(action[DEVICE])} on the device, ${ns(Math.max(0, action[END] - action[BEGIN] - action[DEVICE]))} on the host`]);
  }
  if (action[KIND] === "INFER") rows.splice(1, 0, ["Batch", `${plural(action[ROWS], "row")} in a batch of ${action[BATCH]}`]);
  if (action[WHY]) rows.push(["Why", action[WHY]]);
  if (action[DETAIL]) rows.push(["Detail", action[DETAIL]]);
  return rows;
}

/** The panel of the action that was chosen. */
export function actionPanel() {
  const root = panel("Chosen action");
  root.hidden = true;
  const body = el("div");
  root.append(body);
  return {
    root,
    draw(action, lanes, head) {
      root.hidden = !action;
      if (!action) return;
      const facts = described(action, lanes, head).flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]);
      const requests = action[REQUESTS].flatMap((id) => [el("a.mono", { href: `#/request/${id}` }, id), " "]);
      body.replaceChildren(
        el("p", {}, el("b", {}, `${action[KIND]} `), el("a", { href: `#/model/${encodeURIComponent(action[MODEL])}` }, action[MODEL]), el("span.soft", {}, ` · action ${action[ID]}`)),
        el("dl.facts", {}, ...facts, ...(requests.length ? [el("dt", {}, "Requests"), el("dd", {}, ...requests)] : [])));
    },
  };
}

/** The table of what is in sight; `pick(action)` is called for the row that was chosen. */
export function actionTable(pick) {
  const note = el("span.soft.small");
  const root = panel("In sight", note);
  const body = el("tbody", { role: "rowgroup" });
  const heads = [["Action", ""], ["Where", ""], ["Batch", "n"], ["Begin", "n"], ["Predicted", "n"], ["Actual", "n"], ["Begin off by", "n"], ["Outcome", ""]];
  root.append(el("div.scroll.tall-list", { tabindex: "0", role: "region", "aria-label": "Actions in sight" },
    el("table.acts.stacked", { role: "table", "aria-label": "Actions in sight" }, el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...heads.map(([text, kind]) => el("th", { scope: "col", role: "columnheader", class: kind || null }, text)))), body)));
  function make(action) {
    const cells = heads.map(([text, kind]) => el("td", { role: "cell", class: kind || null, "data-head": text }));
    const button = el("button.textual", { type: "button", onclick: () => pick(row.action) });
    cells[0].append(button);
    const row = el("tr", { role: "row" }, ...cells);
    const mark = el("span.mark");
    cells[7].append(mark);
    Object.assign(row, { cells_: cells, button, mark, action });
    return row;
  }
  return {
    root,
    draw(actions, lanes, head) {
      const shown = actions.slice(-MOST).reverse();
      const bad = actions.filter(failed).length;
      const ahead = actions.filter(outstanding).length;
      write(note, `${plural(actions.length, "action")}: ${count(actions.length - bad - ahead)} done, ${count(bad)} rejected or failed, ${count(ahead)} planned or running${actions.length > MOST ? `; the newest ${MOST} are listed` : ""}`);
      keyed(body, shown, (action) => action[ID], make, (row, action) => {
        row.action = action;
        const lane = lanes[action[LANE]];
        const done = !outstanding(action) && !failed(action);
        write(row.button, `${action[KIND]} ${action[MODEL]}`);
        const texts = [null, `${lane.worker} ${lane.executor}`, action[KIND] === "INFER" ? String(action[BATCH]) : "", clock(beginOf(action), head, 3),
          ns(action[PLAN_END] - action[PLAN_BEGIN]), done && action[BEGIN] !== null ? ns(action[END] - action[BEGIN]) : "–", errors(action)[0]];
        for (let at = 1; at < texts.length; at += 1) write(row.cells_[at], texts[at]);
        put(row.mark, "data-is", failed(action) ? "failed" : done ? "in_time" : action[PLAN_BEGIN] > head.now_ns ? "waiting" : "running");
        write(row.mark, fateOf(action, head.now_ns));
      });
    },
  };
}
