// One instant that several charts point at together, and one that was chosen.

/** `picked(at_ns)` is called when an instant is chosen; null when none is any more. */
export class Cursor {
  constructor(picked) {
    this.at_ns = null;
    this.pinned_ns = null;
    this.charts = new Set();
    this.picked = picked;
  }

  /** Point at an instant, or at none. */
  move(at_ns) {
    if (at_ns === this.at_ns) return;
    this.at_ns = at_ns;
    for (const chart of this.charts) chart.redraw();
  }

  /** Choose an instant; `silent` calls no listener: the caller knows. */
  pin(at_ns, silent = false) {
    this.pinned_ns = at_ns;
    for (const chart of this.charts) chart.redraw();
    if (!silent) this.picked(at_ns);
  }
}
