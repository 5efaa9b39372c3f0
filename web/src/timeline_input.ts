/** The pointer and the keys of the timeline: selecting a moment, zoom and pan. */

import { type Axis, moved, shown, zoomed } from "./axis.ts";
import type { Selection } from "./selection.ts";

/** The pixels from which a press with a movement is a range, and not a click. */
const LEAST_DRAG = 4;

export interface Handlers {
  /** The pointer is at a point of the plot; null: it has left. */
  move(at: { x: number; y: number } | null): void;
  click(x: number, y: number): void;
  /** Return the entry at an x of the plot. */
  entryAt(x: number): number;
  axis(): Axis;
  /** Show `factor` times as many bytes, with those at `y` at the same place; else the middle. */
  zoomBytes(factor: number, y?: number): void;
}

/** Listen to the pointer over the plot, and to the keys of the element that has the focus. */
export function listen(
  over: HTMLElement,
  box: HTMLElement,
  selection: Selection,
  entries: number,
  handlers: Handlers,
): void {
  const interval = (): [number, number] => shown(selection.state.zoom, entries);
  const { axis } = handlers;
  /** Move the view by a part of its length. */
  const pan = (share: number): void => {
    const [first, last] = interval();
    const length = axis().at(last + 1) - axis().at(first);
    selection.update({ zoom: moved(axis(), [first, last], share * length) });
  };
  const zoomBy = (factor: number, centre: number): void =>
    selection.update({ zoom: zoomed(axis(), interval(), factor, centre) });
  let pressed: number | null = null; // the x at which the pointer was pressed
  let isDragged = false;
  over.addEventListener("pointerdown", (event) => {
    pressed = event.offsetX;
    isDragged = false;
    over.setPointerCapture(event.pointerId);
  });
  over.addEventListener("pointermove", (event) => {
    handlers.move({ x: event.offsetX, y: event.offsetY });
    if (pressed === null || !event.buttons) return;
    isDragged ||= Math.abs(event.offsetX - pressed) > LEAST_DRAG;
    const ends = [pressed, event.offsetX].map(handlers.entryAt) as [number, number];
    if (isDragged) selection.update({ range: [Math.min(...ends), Math.max(...ends)] });
  });
  over.addEventListener("pointerleave", () => handlers.move(null));
  over.addEventListener("click", (event) => {
    if (!isDragged) handlers.click(event.offsetX, event.offsetY);
  });
  over.addEventListener("dblclick", () => selection.update({ zoom: null, bytes: null, range: null }));
  over.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      // A wheel that moves sideways, or with Shift, moves the view.
      const across = event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX;
      if (Math.abs(across) > (event.shiftKey ? 0 : Math.abs(event.deltaY))) {
        pan(across / over.clientWidth);
      } else {
        const factor = Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300)));
        if (event.ctrlKey || event.metaKey) handlers.zoomBytes(factor, event.offsetY);
        else zoomBy(factor, handlers.entryAt(event.offsetX));
      }
    },
    { passive: false },
  );

  box.addEventListener("keydown", (event) => {
    const { entry } = selection.state;
    const [first, last] = interval();
    const length = last - first + 1;
    // About five pixels; with Ctrl one event.
    const stride = event.ctrlKey || event.metaKey ? 1 : Math.max(1, Math.round(length / 200));
    const by = event.key === "ArrowRight" ? stride : -stride;
    const key = event.ctrlKey || event.metaKey ? "" : event.key.toLowerCase(); // Ctrl+S saves
    if (key === "a" || key === "d") pan(key === "a" ? -0.1 : 0.1);
    else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      handlers.zoomBytes(event.key === "ArrowUp" ? 0.5 : 2);
    } else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      if (event.shiftKey) pan(Math.sign(by) / 10);
      else follow(Math.max(0, Math.min(entries - 1, entry + by)));
    } else if (event.key === "Home") follow(0);
    else if (event.key === "End") follow(entries - 1);
    else if (["+", "=", "w"].includes(key)) zoomBy(0.5, entry);
    else if (key === "-" || key === "s") zoomBy(2, entry);
    else if (event.key === "0") selection.update({ zoom: null, bytes: null });
    else if (event.key === "[") mark(entry, Math.max(entry, selection.state.range?.[1] ?? entry));
    else if (event.key === "]") mark(Math.min(entry, selection.state.range?.[0] ?? entry), entry);
    else if (event.key === "Escape") selection.update({ range: null, block: null });
    else return;
    event.preventDefault();
  });

  /** Select a range by keys: "[" sets its begin, and "]" its end, to the selected moment. */
  function mark(begin: number, end: number): void {
    selection.update({ range: [begin, end] });
  }

  /** Select an entry, and move the view if the entry is outside. */
  function follow(entry: number): void {
    const [first, last] = interval();
    const isInside = entry >= first && entry <= last;
    const by = axis().at(entry) - (axis().at(first) + axis().at(last + 1)) / 2;
    selection.update(isInside ? { entry } : { entry, zoom: moved(axis(), [first, last], by) });
  }
}
