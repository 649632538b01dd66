// Actions as the console sends them: arrays, in the order of `ActionLine` of console/payloads.py.

export const [ID, LANE, KIND, MODEL, BATCH, ROWS, REQUESTS, SENT, EARLIEST, LATEST, PLAN_BEGIN, PLAN_END, BEGIN, END, STATUS, DETAIL, WHY, EVICTED, DEVICE] = Array(19).keys();

const MOST_HAPPENINGS = 50;
const JOINED_NS = 2e6;

/** Whether it ended otherwise than well. */
export function failed(action) {
  return action[STATUS] !== "" && action[STATUS] !== "ok";
}

/** Whether it is only planned, or runs. */
export function outstanding(action) {
  return action[STATUS] === "";
}

/** When it began, or where it stands if it did not. */
export function beginOf(action) {
  if (action[BEGIN] !== null && !failed(action)) return action[BEGIN];
  return failed(action) ? action[END] ?? action[BEGIN] ?? action[LATEST] : action[PLAN_BEGIN];
}

/** When it ended or, by plan, will. */
export function endOf(action) {
  if (failed(action)) return beginOf(action);
  return action[END] ?? Math.max(action[PLAN_END], beginOf(action));
}

/** What became of it, in words. */
export function fateOf(action, now_ns) {
  if (failed(action)) return action[STATUS].replaceAll("_", " ");
  if (!outstanding(action)) return "done";
  return action[PLAN_BEGIN] > now_ns ? "planned" : "running by plan";
}

/**
 * Each LOAD with the first INFER that it made possible: the next one of its model on its worker. `workerOf(action)`
 * names that worker. Returns pairs.
 */
export function joined(actions, workerOf) {
  const loads = new Map();
  const infers = [];
  for (const action of actions) {
    if (failed(action)) continue;
    if (action[KIND] === "INFER") infers.push(action);
    else if (action[KIND] === "LOAD") {
      const key = `${workerOf(action)}\n${action[MODEL]}`;
      if (!loads.has(key)) loads.set(key, []);
      loads.get(key).push([action, null]);
    }
  }
  for (const infer of infers) {
    let pair = null;
    // The newest LOAD that ends by the beginning of the INFER, with a little for what is only predicted.
    for (const one of loads.get(`${workerOf(infer)}\n${infer[MODEL]}`) ?? []) {
      if (endOf(one[0]) <= beginOf(infer) + JOINED_NS && (!pair || beginOf(one[0]) > beginOf(pair[0]))) pair = one;
    }
    if (pair && (!pair[1] || beginOf(infer) < beginOf(pair[1]))) pair[1] = infer;
  }
  return [...loads.values()].flat().filter(([, infer]) => infer !== null);
}

/**
 * The actions that a page holds: whole pictures replace them, later ones change some. Lanes get numbers of the
 * page's own, because those of a picture are good for that picture alone.
 */
export class Held {
  constructor() {
    this.actions = new Map();
    this.happenings = [];
    this.waiting = [];
    this.waiting_requests = 0;
    this.lanes = [];
    this.numbers = new Map();
    this.version = 0;
  }

  take(data, after) {
    const own = data.lanes.map((lane) => this.#number(lane));
    this.shown = [...own].sort((a, b) => a - b);
    if (data.whole !== false && !after) this.actions.clear();
    for (const action of data.actions) {
      action[LANE] = own[action[LANE]];
      this.actions.set(action[ID], action);
    }
    for (const [id, action] of this.actions) {
      if (endOf(action) < data.from_ns && !outstanding(action)) this.actions.delete(id);
    }
    this.#happened(data.happenings, data.whole !== false && !after);
    this.version = data.version;
    this.waiting = data.waiting;
    this.waiting_requests = data.waiting_requests;
    this.truncated = data.truncated;
  }

  #happened(lines, whole) {
    const keyOf = (line) => `${line.at_ns} ${line.worker} ${line.text}`;
    const known = new Set(lines.map(keyOf));
    const before = whole ? [] : this.happenings.filter((line) => !known.has(keyOf(line)));
    this.happenings = [...lines, ...before].sort((a, b) => b.at_ns - a.at_ns).slice(0, MOST_HAPPENINGS);
  }

  #number(lane) {
    const key = `${lane.worker}\n${lane.executor}`;
    let number = this.numbers.get(key);
    if (number === undefined) {
      number = this.lanes.push(lane) - 1;
      this.numbers.set(key, number);
    }
    return number;
  }
}
