// The connection to the console: one WebSocket, one show at a time, which connects again by itself when it is lost.

const FIRST_RETRY_MS = 300;
const LONGEST_RETRY_MS = 1500;
const SILENCE_MS = 3000;
const POLICY_VIOLATION = 1008;
const TOKEN = "mainspring.token";

/** The token that the operator typed; kept for this tab only. */
export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (text) => (text ? sessionStorage.setItem(TOKEN, text) : sessionStorage.removeItem(TOKEN)),
};

/** GET or POST of the console's API; returns its JSON. Throws an Error with a sentence for a person. */
export async function call(path, body = undefined) {
  const headers = token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
  const options = body === undefined ? { headers } : {
    method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  let reply;
  try {
    reply = await fetch(`api/${path}`, options);
  } catch {
    throw new Error("The console does not answer. Is it still running?");
  }
  const answer = await reply.json().catch(() => ({}));
  if (!reply.ok) {
    const error = new Error(answer.error?.text ?? answer.detail ?? `The console answered with status ${reply.status}.`);
    error.status = reply.status;
    throw error;
  }
  return answer;
}

async function inflated(data) {
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).json();
}

/**
 * Gets pictures of the show that was asked for last.
 *
 * `take(message)` is called for each picture at once, in order; `draw()` on the next frame after it, after which
 * the console learns that it was seen. `changed()` is called when the state of the connection changes.
 */
export class Link {
  constructor({ take, draw, failed, changed, needsToken }) {
    Object.assign(this, { take, draw, failed, changed, needsToken });
    this.open = false;
    this.asked = null;
    this.heard_ms = 0;
    this.retry_ms = FIRST_RETRY_MS;
    this.order = Promise.resolve();
    this.seen = 0;
    this.frame = 0;
    this.socket = null;
    setInterval(() => this.changed(), 1000);
  }

  /** Whether pictures ought to come and have not for some seconds. */
  get silent() {
    return !this.open || (performance.now() - this.heard_ms > SILENCE_MS && this.asked !== null && !document.hidden);
  }

  /** Connect, and do it again whenever the connection ends. */
  connect() {
    const url = new URL(`ws${"DecompressionStream" in window ? "?deflate=1" : ""}`, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    socket.onopen = () => this.#opened(socket);
    socket.onmessage = (event) => this.#arrived(socket, event.data);
    socket.onclose = (event) => this.#closed(event);
  }

  /** Connect at once instead of after the pause. */
  hurry() {
    if (this.socket?.readyState === WebSocket.CLOSED) {
      clearTimeout(this.timer);
      this.connect();
    }
  }

  /** Ask for a show; it replaces the one before. */
  show(show, params = {}, every_ms = 100) {
    this.asked = { show, params, every_ms };
    this.key = show;
    this.#send(this.asked);
  }

  /** Of a recorded run: go to an instant, play, pause. */
  seek(to) {
    this.#send({ seek: to });
  }

  #send(message) {
    // A connection that is being closed is closed some time before `onclose` says so.
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  #opened(socket) {
    this.open = true;
    this.retry_ms = FIRST_RETRY_MS;
    this.heard_ms = performance.now();
    if (token.get()) socket.send(JSON.stringify({ token: token.get() }));
    if (this.asked) this.#send(this.asked);
    this.changed();
  }

  #arrived(socket, data) {
    // Inflating takes its time; what came first stays first.
    const message = typeof data === "string" ? Promise.resolve(JSON.parse(data)) : inflated(data);
    this.order = this.order.then(() => message).then((found) => {
      if (socket === this.socket) this.#heard(found);
    }).catch((error) => console.error(error));
  }

  #heard(message) {
    this.heard_ms = performance.now();
    if (message.error) {
      this.failed(message.error);
      return;
    }
    this.seen = Math.max(this.seen, message.n);
    if (message.show === this.asked?.show) this.take(message);
    if (!this.frame) this.frame = requestAnimationFrame(() => this.#drawn());
  }

  #drawn() {
    this.frame = 0;
    try {
      this.draw();
    } finally {
      this.#send({ seen: this.seen });
    }
  }

  #closed(event) {
    this.open = false;
    this.seen = 0;
    if (event.code === POLICY_VIOLATION) this.needsToken(event.reason);
    this.timer = setTimeout(() => this.connect(), this.retry_ms);
    this.retry_ms = Math.min(LONGEST_RETRY_MS, 1.6 * this.retry_ms);
    this.changed();
  }
}
