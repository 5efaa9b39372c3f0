/** The history in one small curve, with the interval that the timeline shows. */

import { type Columns, columnsOf } from "./areas.ts";
import { type Axis, axisOf, moved, shown } from "./axis.ts";
import { ink } from "./colours.ts";
import type { Model } from "./model.ts";
import type { Selection } from "./selection.ts";
import { LEFT, RIGHT } from "./timeline_draw.ts";
import { drawWhenNeeded, element, prepare } from "./view.ts";

const HEIGHT = 16;

export function createMinimap(root: HTMLElement, { device, usage }: Model, selection: Selection): void {
  const canvas = element("canvas", {
    class: "minimap",
    title: "The complete history. Drag to move the view of the timeline.",
    "aria-hidden": "true",
  });
  // Below the plot, with the same edges.
  Object.assign(canvas.style, {
    height: `${HEIGHT}px`,
    marginLeft: `${LEFT}px`,
    width: `calc(100% - ${LEFT + RIGHT}px)`,
  });
  root.append(canvas);
  const entries = device.events.count + 1;
  let columns: (Columns & { width: number }) | null = null; // one pass over all entries
  const axis = (): Axis => axisOf(device, selection.state.axis);

  function draw(): void {
    const width = canvas.clientWidth;
    const context = prepare(canvas, width, HEIGHT);
    const colours = ink();
    const shownAxis = axis();
    if (columns?.width !== width || columns.axis.isTime !== shownAxis.isTime) {
      const found = columnsOf(usage.allocated, shownAxis, 0, entries - 1, Math.max(1, width));
      columns = { width, ...found };
    }
    const x = (entry: number): number =>
      (shownAxis.at(entry) * width) / (shownAxis.at(entries) || 1);
    let top = 1;
    for (const entry of columns.entries) top = Math.max(top, usage.allocated[entry]!);
    const count = columns.entries.length;
    context.fillStyle = colours.faint;
    for (let i = 0; i < count; i++) {
      const height = (usage.allocated[columns.entries[i]!]! / top) * (HEIGHT - 4);
      context.fillRect((i * width) / count, HEIGHT - height, width / count + 0.5, height);
    }
    const [first, last] = shown(selection.state.zoom, entries);
    const [left, right] = [x(first), x(last + 1)];
    context.fillStyle = colours.paper;
    context.globalAlpha = 0.65;
    context.fillRect(0, 0, left, HEIGHT);
    context.fillRect(right, 0, width - right, HEIGHT);
    context.globalAlpha = 1;
    context.strokeStyle = colours.select;
    context.lineWidth = 1.5;
    context.strokeRect(left + 0.75, 0.75, Math.max(3, right - left - 1.5), HEIGHT - 1.5);
    const { entry } = selection.state;
    context.fillStyle = colours.alarm;
    context.fillRect((x(entry) + x(shownAxis.isTime ? entry : entry + 1)) / 2 - 1, 0, 2, HEIGHT);
  }

  drawWhenNeeded(root, selection, draw);
  const drag = (event: PointerEvent): void => {
    if (!event.buttons) return;
    const interval = shown(selection.state.zoom, entries);
    const shownAxis = axis();
    const place = (event.offsetX / canvas.clientWidth) * shownAxis.at(entries);
    const centre = (shownAxis.at(interval[0]) + shownAxis.at(interval[1] + 1)) / 2;
    if (selection.state.zoom) selection.update({ zoom: moved(shownAxis, interval, place - centre) });
    else {
      const entry = Math.floor(shownAxis.entry(place));
      selection.update({ entry: Math.max(0, Math.min(entries - 1, entry)) });
    }
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    drag(event);
  });
  canvas.addEventListener("pointermove", drag);
}
