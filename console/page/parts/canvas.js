// A canvas as sharp as the screen, which is drawn again when its size, its theme or its data changed.

/**
 * Put a canvas into `holder`, which has a height of its own, and call `paint(context, width, height)` on the next
 * frame whenever `redraw()` was called, the size changed or the theme did. Returns {canvas, redraw, close}.
 * With `keep` the canvas is not cleared before: `paint`'s fourth argument says whether there is nothing on it.
 */
export function surface(holder, paint, keep = false) {
  const canvas = document.createElement("canvas");
  holder.append(canvas);
  const context = canvas.getContext("2d");
  let frame = 0;
  let empty = true;
  let width = 0;
  let height = 0;

  function draw() {
    frame = 0;
    if (!width || !height) return;
    const scale = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      empty = true;
    }
    context.setTransform(scale, 0, 0, scale, 0, 0);
    if (!keep || empty) context.clearRect(0, 0, width, height);
    paint(context, width, height, empty);
    empty = false;
  }
  function redraw() {
    if (!frame) frame = requestAnimationFrame(draw);
  }
  const watch = new ResizeObserver(([entry]) => {
    width = entry.contentRect.width;
    height = entry.contentRect.height;
    redraw();
  });
  watch.observe(holder);
  function dressed() {
    empty = true;
    redraw();
  }
  addEventListener("theme", dressed);
  return {
    canvas,
    redraw,
    close() {
      watch.disconnect();
      removeEventListener("theme", dressed);
      cancelAnimationFrame(frame);
    },
  };
}

/** A small box beside the pointer; `show(x, y, ...children)` within `holder`, `hide()`. */
export function tip(holder) {
  const box = document.createElement("div");
  box.className = "tip";
  box.setAttribute("aria-hidden", "true");
  holder.append(box);
  return {
    show(x, y, ...children) {
      box.replaceChildren(...children);
      box.classList.add("on");
      const left = Math.max(0, Math.min(x + 14, holder.clientWidth - box.offsetWidth));
      const above = y - box.offsetHeight - 12;
      box.style.transform = `translate(${left}px, ${above > 0 ? above : y + 18}px)`;
    },
    hide() {
      box.classList.remove("on");
    },
  };
}

/** A name, or its end, by which copies of a model differ, as far as `wide` pixels hold it; empty if they hold none. */
export function shortened(context, name, wide) {
  if (context.measureText(name).width <= wide) return name;
  for (let length = name.length - 1; length > 0; length -= 1) {
    const short = `…${name.slice(-length)}`;
    if (context.measureText(short).width <= wide) return length > 1 ? short : "";
  }
  return "";
}

/** Pairs of a name and a value as a list of definitions. */
export function pairs(entries) {
  const list = document.createElement("dl");
  for (const [name, value] of entries) {
    const term = document.createElement("dt");
    const detail = document.createElement("dd");
    term.textContent = name;
    detail.textContent = value;
    list.append(term, detail);
  }
  return list;
}
