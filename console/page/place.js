// The instant of a recorded run that the address names.

import { instant, stamp } from "./text.js";

const SAME_NS = 2e6;
const PATIENCE_MS = 10_000;

/** Goes to the instant of an address that was opened, and keeps the address at the instant where the run stands. */
export class Place {
  /** `seek(to)` sends one to the console, `keep(changes)` sets parameters of the address. */
  constructor(seek, keep) {
    this.send = seek;
    this.keep = keep;
    this.wanted = null;
    this.until_ms = 0;
    this.wanted_ns = null;
  }

  /** An address was opened; `at` is its instant, or null. */
  open(at) {
    this.wanted = at;
  }

  /** Whether a recorded run stands where the address says, or what is shown is live. */
  get settled() {
    return this.wanted === null && this.wanted_ns === null;
  }

  /** The user goes to another instant. */
  seek(to) {
    this.wanted = this.wanted_ns = null;
    this.send(to);
  }

  /** A picture came: `replay` says where the run stands, null if what is shown is live. */
  follow(replay, head) {
    if (!head?.unix_ns) return;
    if (!replay) {
      this.wanted = null;
      return;
    }
    if (this.wanted !== null) {
      const at_ns = instant(this.wanted, head);
      this.wanted = null;
      if (at_ns !== null) {
        this.wanted_ns = Math.max(replay.first_ns, Math.min(replay.last_ns, at_ns));
        this.until_ms = performance.now() + PATIENCE_MS;
        if (replay.playing || Math.abs(this.wanted_ns - replay.at_ns) > SAME_NS) this.send({ at_ns: this.wanted_ns, playing: false });
      }
    }
    const there = this.wanted_ns === null || (!replay.playing && Math.abs(replay.at_ns - this.wanted_ns) <= SAME_NS);
    if (!there && performance.now() < this.until_ms) return;
    this.wanted_ns = null;
    this.keep({ at: replay.playing ? null : stamp(replay.at_ns, head) });
  }
}
