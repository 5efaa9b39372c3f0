/**
 * View 1, over time: allocated bytes as stacked areas, reserved bytes and the device's limit as
 * lines, steps and phases as lanes, and marks.
 *
 * What follows the pointer or the selected moment is on a canvas of its own, in front of the curves,
 * so that scrubbing draws only lines.
 */

import { type Areas, areasOf, type Columns, columnsOf, type Hit, hitAt } from "./areas.ts";
import { type Axis, axisOf, shown } from "./axis.ts";
import { colourOf, groupsOf, ink } from "./colours.ts";
import { Labels } from "./labels.ts";
import type { Model } from "./model.ts";
import { createMinimap } from "./minimap.ts";
import type { Selection } from "./selection.ts";
import { tooltipLines } from "./block_texts.ts";
import { count, roundTime, size } from "./text.ts";
import {
  AXIS, drawAreas, drawAxes, drawLanes, drawLines, drawMarks, drawStepBands, type Frame, LANE,
  laneCount, LEFT, type Line, outline, placeAtTop, placeLineNames, placeMarks, placeNames, RIGHT,
  STRIP,
} from "./timeline_draw.ts";
import { listen } from "./timeline_input.ts";
import { createTimelineTools } from "./timeline_tools.ts";
import { createTooltip } from "./tooltip.ts";
import { drawWhenNeeded, element, prepare } from "./view.ts";

/** The fewest bytes that the height of the timeline shows. */
const LEAST_BYTES = 4096;

export function createTimeline(root: HTMLElement, model: Model, selection: Selection): void {
  const { device, usage } = model;
  const entries = device.events.count + 1;
  const lanes = element("canvas", { class: "lanes", "aria-hidden": "true" });
  const box = element("div", {
    class: "plot",
    tabindex: "0",
    role: "application",
    "aria-label":
      "Memory over time. Left and right arrows select a moment; with Shift, they move " +
      "the view; plus and minus (or W and S) zoom; up and down zoom the axis of bytes; 0 shows everything; " +
      "square brackets begin and end a range; Escape clears the selection.",
  });
  createTimelineTools(root, model, selection);
  root.append(lanes, box);
  const base = element("canvas", { class: "base", "aria-hidden": "true" });
  const style = `height: calc(100% + ${STRIP}px); width: calc(100% + ${RIGHT}px)`;
  const overlay = element("canvas", { class: "overlay", style, "aria-hidden": "true" });
  const over = element("div", {
    class: "over", style: `inset: ${STRIP}px ${RIGHT}px ${AXIS}px ${LEFT}px`,
  }, overlay);
  box.append(base, over);
  lanes.style.marginLeft = `${LEFT}px`;
  const tooltip = createTooltip(box, true);
  let areas: Areas;
  let frame: Frame;
  let labels: Labels;
  let drawn = "";
  let highest = 0; // the bytes at the upper edge when all are shown
  let pointer: { x: number; y: number } | null = null;

  const interval = (): [number, number] => shown(selection.state.zoom, entries);
  const { capacity_bytes: limit, capacity_until } = device;
  const limitName = capacity_until === null ? "device limit" : "limit";
  // A limit far above the usage would press the curves flat: then only the details show it.
  const isLimitShown =
    limit !== null && limit <= 4 * most(usage.has_segments ? usage.reserved : usage.allocated);
  // The event of an entry e is e - 1, and takes effect at the left edge of e.
  const eventOf = (x: number): number => device.first_event + x - 1;
  const axis = (): Axis => axisOf(device, selection.state.axis);
  const timeOf = (x: number, step: number): string => {
    const { time_us, count: events } = device.events;
    if (!device.has_times || !events) return "";
    const [here, next] = [x, x + step].map((at) =>
      time_us[Math.max(0, Math.min(events - 1, Math.round(at) - 1))]! - time_us[0]!) as [number, number];
    return ` · ${roundTime(here, Math.max(1, (next - here) / 10))}`;
  };

  createMinimap(root, model, selection);

  function entryAt(x: number): number {
    const [first, last] = interval();
    return Math.max(first, Math.min(last, Math.floor(frame.entry(x))));
  }

  function draw(): void {
    const { state, colour } = selection;
    const [width, height] = [Math.max(200, box.clientWidth), box.clientHeight];
    const key = [state.zoom, state.bytes, state.axis, colour, width, height, ink().paper, devicePixelRatio].join(" ");
    if (key !== drawn) drawCurves(width, height);
    drawn = key;
    drawOverlay();
  }

  /** Draw all but what follows the pointer and the selected moment, in a box of a size. */
  function drawCurves(width: number, height: number): void {
    const groups = groupsOf(model, selection.colour);
    const [first, last] = interval();
    const across = width - LEFT - RIGHT;
    const down = height - STRIP - AXIS;
    const shownAxis = axis();
    const columns = columnsOf(usage.allocated, shownAxis, first, last, Math.max(50, across));
    const { xs, lines } = linesOf(columns, across);
    const shownBytes = lines.flatMap(({ values }) => values.map((value) => value ?? 0));
    highest = 1.06 * Math.max(1, most(shownBytes), largest(columns.entries, usage.allocated));
    const [low, top] = selection.state.bytes ?? [0, highest];
    const [begin, end] = [shownAxis.at(first), shownAxis.at(last + 1)];
    const span = end - begin || 1;
    const at = (place: number): number => ((place - begin) / span) * across;
    frame = {
      width: across,
      height: down,
      low,
      top,
      axis: shownAxis,
      begin,
      end,
      at,
      x: (entry) => at(shownAxis.at(entry)),
      entry: (x) => shownAxis.entry(begin + (x / across) * span),
      y: (bytes) => down - ((bytes - low) / (top - low)) * down,
      bytes: (y) => top - (y / down) * (top - low),
    };
    // Blocks that are lower than a pixel get no areas of their own.
    areas = areasOf(device.blocks, groups, columns, (top - low) / down);
    const context = prepare(base, width, height);
    context.translate(LEFT, STRIP);
    context.save();
    context.beginPath();
    context.rect(0, 0, across, down);
    context.clip();
    drawStepBands(context, device, frame);
    drawAreas(context, areas, groups, frame);
    drawLines(context, xs, lines, frame);
    context.restore();
    if (shownAxis.isTime) {
      drawAxes(context, frame, 0, (time, step) => {
        const event = eventOf(Math.floor(shownAxis.entry(time)));
        return `${roundTime(time, step)} · event ${count(Math.max(0, event))}`;
      });
    } else {
      const offset = device.first_event - 1;
      drawAxes(context, frame, offset, (event, step, isFirst) =>
        `${isFirst ? "event " : ""}${count(event)}${timeOf(event - offset, step)}`);
    }
    const high = Math.max(1, laneCount(device) * LANE);
    Object.assign(lanes.style, { width: `${across}px`, height: `${high}px` });
    const phases = selection.colour === "phase" ? groups : null;
    drawLanes(prepare(lanes, across, high), device, phases, frame);
    labels = placed(xs, lines);
  }

  /** The reserved bytes, in each column the most, and the limit where it was known. */
  function linesOf({ last, from, to }: Columns, across: number): { xs: number[]; lines: Line[] } {
    const xs: number[] = [];
    const reserved: number[] = [];
    for (let column = 0; column < from.length; column++) {
      let top = 0;
      for (let entry = from[column]!; entry < to[column]!; entry++) {
        top = Math.max(top, usage.reserved[entry]!);
      }
      xs.push((column * across) / from.length);
      reserved.push(top);
    }
    xs.push(across);
    reserved.push(usage.reserved[last]!);
    const isKnown = (entry: number): boolean => capacity_until === null || entry < capacity_until;
    const limits = xs.map((_, i) =>
      limit !== null && isKnown(from[i] ?? last) && reserved[i]! <= limit ? limit : null);
    const lines: Line[] = [];
    if (isLimitShown) lines.push({ name: limitName, colour: ink().limit, dash: [8, 4], values: limits });
    if (usage.has_segments) {
      lines.push({ name: "reserved", colour: ink().reserved, dash: [], values: reserved });
    }
    return { xs, lines };
  }

  /** The labels, which change with the curves, and not with the selected moment. */
  function placed(xs: number[], lines: readonly Line[]): Labels {
    const bounds = { left: 0, top: -STRIP, right: frame.width + RIGHT, bottom: frame.height };
    const found = new Labels(overlay.getContext("2d")!, bounds);
    placeMarks(found, device, usage.allocated, frame);
    if (limit !== null && !isLimitShown) {
      placeAtTop(found, `${limitName}: ${size(limit)}, above this ↑`, ink().limit, frame);
    }
    placeLineNames(found, xs, lines, frame);
    placeNames(found, areas, groupsOf(model, selection.colour), frame);
    return found;
  }

  function drawOverlay(): void {
    const { entry, range, block } = selection.state;
    const { width, height } = frame;
    const context = prepare(overlay, width + RIGHT, height + STRIP);
    context.translate(0, STRIP);
    context.save();
    context.beginPath();
    context.rect(0, -STRIP, width, height + STRIP);
    context.clip();
    const colours = ink();
    if (range) {
      context.fillStyle = colours.band;
      context.strokeStyle = colours.text;
      const [left, right] = [frame.x(range[0]), frame.x(range[1] + 1)];
      context.fillRect(left, 0, Math.max(1, right - left), height);
      context.strokeRect(left, -1, Math.max(1, right - left), height + 2);
    }
    drawMarks(context, device, frame);
    const selected = areas.blocks.find((area) => area.block === block);
    if (selected) {
      outline(context, selected, areas, frame);
      context.strokeStyle = colours.select;
      context.lineWidth = 2.5;
      context.stroke();
    }
    // A moment may last long: its event is where it begins.
    const x = (frame.x(entry) + frame.x(frame.axis.isTime ? entry : entry + 1)) / 2;
    context.strokeStyle = colours.select;
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, height);
    context.stroke();
    context.fillStyle = colours.select;
    context.beginPath();
    context.moveTo(x - 6, 0);
    context.lineTo(x + 6, 0);
    context.lineTo(x, 8);
    context.fill();
    context.restore(); // names may be next to the plot
    labels.draw(context, colours.paper);
    if (pointer) hover(pointer);
    else tooltip.hide();
  }

  /** Return the column at a point, and what is there. */
  function under(x: number, y: number): { column: number; hit: Hit | null } {
    const { length } = areas.columns.entries;
    const column = Math.max(0, Math.min(length - 1, Math.floor((x / frame.width) * length)));
    return { column, hit: hitAt(areas, column, frame.bytes(y)) };
  }

  function hover({ x, y }: { x: number; y: number }): void {
    const { column, hit } = under(x, y);
    const groups = groupsOf(model, selection.colour);
    const text: string[] = [];
    if (hit?.block != null) text.push(...tooltipLines(model, hit.block));
    else if (hit) text.push(`${groups.names[hit.group]}: smaller blocks: zoom in (wheel, Ctrl+wheel) to see each one`);
    const column_entry = areas.columns.entries[column]!;
    text.push(
      `after event ${count(eventOf(column_entry))}: ${size(usage.allocated[column_entry]!)} allocated` +
        (usage.has_segments ? `, ${size(usage.reserved[column_entry]!)} reserved` : ""),
    );
    const swatch = hit ? colourOf(groups.swatch[hit.group]!) : null;
    tooltip.show(x + LEFT, y, text, swatch);
  }

  const request = drawWhenNeeded(root, selection, draw);
  listen(over, box, selection, entries, {
    move(at) {
      pointer = at;
      request();
    },
    click(x, y) {
      const { column, hit } = under(x, y);
      // The column's own entry, so that the selected moment shows the block that was clicked.
      selection.update({ entry: areas.columns.entries[column]!, block: hit?.block ?? null });
    },
    entryAt,
    axis,
    zoomBytes(factor, y = frame.height / 2) {
      const centre = frame.bytes(y);
      const low = Math.max(0, Math.floor(centre - (centre - frame.low) * factor));
      const top = Math.max(low + LEAST_BYTES, Math.ceil(centre + (frame.top - centre) * factor));
      selection.update({ bytes: low === 0 && top >= highest ? null : [low, top] });
    },
  });
}

function most(values: ArrayLike<number>): number {
  let found = 0;
  for (let i = 0; i < values.length; i++) found = Math.max(found, values[i]!);
  return found;
}

function largest(entries: Int32Array, values: Float64Array): number {
  return entries.reduce((found, entry) => Math.max(found, values[entry]!), 0);
}
