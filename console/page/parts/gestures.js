// Wheel, pointer, fingers and keys on a timeline.

const STILL_PX = 4;

/** Call `act.pan(share)`, `zoom(factor, share)`, `point(x, y)`, `pick(x, y)`, `step(by)`, `toggle()`, `resume()`. */
export function handle(canvas, act) {
  const held = new Map();
  let moved = 0;
  const inner = () => Math.max(1, canvas.clientWidth - act.left());
  const share = (x) => Math.max(0, Math.min(1, (x - act.left()) / inner()));

  canvas.style.touchAction = "pan-y";
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) act.pan((event.deltaX || event.deltaY) / inner());
    else act.zoom(1.0018 ** Math.max(-400, Math.min(400, event.deltaY)), share(event.offsetX));
  }, { passive: false });

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    held.set(event.pointerId, event.offsetX);
    moved = 0;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = held.get(event.pointerId);
    if (before === undefined) {
      act.point(event.offsetX, event.offsetY);
      return;
    }
    const by = event.offsetX - before;
    moved += Math.abs(by);
    if (held.size === 1 && moved > STILL_PX) act.pan(-by / inner());
    if (held.size === 2) pinch(event.pointerId, before, event.offsetX);
    held.set(event.pointerId, event.offsetX);
  });
  function pinch(id, before, now) {
    const [other] = [...held].filter(([key]) => key !== id).map(([, x]) => x);
    const was = Math.abs(before - other);
    const is = Math.abs(now - other);
    if (was > 8 && is > 8) act.zoom(was / is, share((now + other) / 2));
  }
  function end(event) {
    if (held.delete(event.pointerId) && moved <= STILL_PX && event.type === "pointerup") act.pick(event.offsetX, event.offsetY);
  }
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("pointerleave", () => act.point(null, null));

  const keys = {
    ArrowLeft: () => act.pan(-0.1), ArrowRight: () => act.pan(0.1), PageUp: () => act.pan(-0.9), PageDown: () => act.pan(0.9),
    "+": () => act.zoom(0.667), "=": () => act.zoom(0.667), "-": () => act.zoom(1.5), End: () => act.resume(), " ": () => act.toggle(),
    ",": () => act.step(-1), ".": () => act.step(1),
  };
  canvas.addEventListener("keydown", (event) => {
    const found = keys[event.key];
    if (!found || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    found();
  });
}
