/**
 * View 1, over time: allocated bytes as stacked areas, reserved bytes and the device's limit as
 * lines, steps and phases as lanes, and marks.
 *
 * uPlot draws the axes and lines and reports dragging. The areas are drawn behind its lines, and
 * what follows the pointer or the selected moment on a canvas of its own, so that scrubbing draws
 * only lines.
 */

import uPlot from "uplot";
import { type Areas, areasOf, type Columns, columnOf, columnsOf, hitAt } from "./areas.ts";
import { colourOf, groupsOf, ink } from "./colours.ts";
import { Labels } from "./labels.ts";
import type { Model } from "./model.ts";
import { createMinimap } from "./minimap.ts";
import type { Selection } from "./selection.ts";
import { tooltipLines } from "./block_texts.ts";
import { count, duration, size } from "./text.ts";
import {
  drawAreas,
  drawLanes,
  drawMarks,
  drawStepBands,
  type Frame,
  LANE,
  laneCount,
  LEFT,
  outline,
  placeAtTop,
  placeLineNames,
  placeMarks,
  placeNames,
  RIGHT,
  STRIP,
} from "./timeline_draw.ts";
import { listen } from "./timeline_input.ts";
import { createTimelineTools } from "./timeline_tools.ts";
import { createTooltip } from "./tooltip.ts";
import { drawWhenNeeded, element, prepare } from "./view.ts";
import { shown } from "./zoom.ts";

export function createTimeline(root: HTMLElement, model: Model, selection: Selection): void {
  const { device, usage } = model;
  const entries = device.events.count + 1;
  const lanes = element("canvas", { class: "lanes", "aria-hidden": "true" });
  const box = element("div", {
    class: "plot",
    tabindex: "0",
    role: "application",
    "aria-label":
      "Memory over time. Left and right arrows move the selected moment, Shift and an arrow move " +
      "the view, plus and minus zoom, 0 shows everything, square brackets begin and end a range, " +
      "Escape clears the selection.",
  });
  createTimelineTools(root, model, selection);
  root.append(lanes, box);
  const style = `height: calc(100% + ${STRIP}px)`;
  const overlay = element("canvas", { class: "overlay", style });
  const tooltip = createTooltip(box);
  let areas: Areas | null = null;
  let labels: Labels | null = null;
  let drawn = "";
  let pointer: { x: number; y: number } | null = null;

  const interval = (): [number, number] => shown(selection.state.zoom, entries);
  const { capacity_bytes: limit, capacity_until } = device;
  const limitName = capacity_until === null ? "device limit" : "limit";
  // A limit far above the usage would press the curves flat: then only the details show it.
  const isLimitShown =
    limit !== null && limit <= 4 * most(usage.has_segments ? usage.reserved : usage.allocated);
  let top = 1; // the largest shown bytes

  function frameOf(u: uPlot, width: number, height: number): Frame {
    const { min, max } = u.scales["x"] as { min: number; max: number };
    return {
      width,
      height,
      x: (entry) => ((entry - min) / (max - min)) * width,
      y: (bytes) => height - (bytes / u.scales["y"]!.max!) * height,
      entry: (x) => min + (x / width) * (max - min),
    };
  }

  // The event of an entry e is e - 1, and takes effect at the left edge of e.
  const eventOf = (x: number): number => device.first_event + x - 1;
  const timeOf = (x: number): string => {
    const { time_us, count: events } = device.events;
    if (!device.has_times || !events) return "";
    const event = Math.max(0, Math.min(events - 1, Math.round(x) - 1));
    return ` · ${duration(time_us[event]! - time_us[0]!)}`;
  };

  const plot = new uPlot(
    {
      width: 600,
      height: 160,
      padding: [STRIP, RIGHT, 0, 0],
      legend: { show: false },
      cursor: { points: { show: false }, drag: { x: true, y: false, setScale: false, dist: 4 } },
      scales: {
        x: { time: false, range: () => [interval()[0], interval()[1] + 1] },
        y: { range: () => [0, top * 1.06] },
      },
      axes: [
        {
          stroke: () => ink().faint,
          grid: { stroke: () => ink().grid, width: 1 },
          ticks: { stroke: () => ink().grid, size: 4 },
          space: 140,
          gap: 3,
          size: 22,
          // Round event numbers, which are one less than the entries.
          splits: (_, __, min, max, step) => {
            const found: number[] = [];
            const whole = Math.max(1, Math.round(step));
            for (let at = Math.ceil(eventOf(min) / whole) * whole; at <= eventOf(max); at += whole) {
              if (at >= device.first_event) found.push(at - device.first_event + 1);
            }
            return found;
          },
          values: (_, splits) => splits.map((at, i) => `${i ? "" : "event "}${count(eventOf(at))}${timeOf(at)}`),
        },
        {
          stroke: () => ink().faint,
          grid: { stroke: () => ink().grid, width: 1 },
          ticks: { stroke: () => ink().grid },
          size: LEFT,
          splits: (_, __, ___, max) => byteSplits(max),
          values: (_, splits) => splits.map(size),
        },
      ],
      series: [
        {},
        line("reserved", () => ink().reserved, [], usage.has_segments),
        line(limitName, () => ink().limit, [8, 4], isLimitShown),
      ],
      hooks: {
        drawClear: [
          (u) => {
            const { left, top, width, height } = u.bbox;
            const { ctx } = u;
            const ratio = devicePixelRatio || 1;
            ctx.save();
            ctx.translate(left, top);
            ctx.scale(ratio, ratio);
            ctx.beginPath();
            ctx.rect(0, 0, width / ratio, height / ratio);
            ctx.clip();
            const frame = frameOf(u, width / ratio, height / ratio);
            drawStepBands(ctx, device, frame);
            if (areas) drawAreas(ctx, areas, groupsOf(model, selection.colour), frame);
            ctx.restore();
          },
        ],
        // uPlot applies new data and sizes after the call: only now are the scales the new ones.
        draw: [
          (u) => {
            const across = u.over.clientWidth;
            const height = Math.max(1, laneCount(device) * LANE);
            Object.assign(lanes.style, {
              marginLeft: `${u.over.offsetLeft}px`,
              width: `${across}px`,
              height: `${height}px`,
            });
            const phases = selection.colour === "phase" ? groupsOf(model, "phase") : null;
            drawLanes(prepare(lanes, across, height), device, phases, frameOf(u, across, LANE));
            labels = placed(u, frameOf(u, across, u.over.clientHeight));
            drawOverlay();
          },
        ],
        setSelect: [
          (u) => {
            if (!u.select.width) return;
            const [begin, end] = [u.select.left, u.select.left + u.select.width].map(entryAt);
            selection.update({ range: [begin!, Math.max(begin!, end!)] });
            u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          },
        ],
      },
    },
    [[0], [0], [0]],
    box,
  );
  plot.over.append(overlay);
  createMinimap(root, model, selection);

  function entryAt(x: number): number {
    const [first, last] = interval();
    const width = plot.over.clientWidth || 1;
    return Math.max(first, Math.min(last, first + Math.floor((x / width) * (last - first + 1))));
  }

  function draw(): void {
    const { zoom } = selection.state;
    const { colour } = selection;
    const [width, height] = [Math.max(200, box.clientWidth), box.clientHeight];
    const key = [zoom, colour, width, height, ink().paper, devicePixelRatio].join(" ");
    if (key !== drawn) {
      drawn = key;
      if (plot.width !== width || plot.height !== height) plot.setSize({ width, height });
      const [first, last] = interval();
      const columns = columnsOf(usage.allocated, first, last, Math.max(50, width - LEFT - RIGHT));
      const data = lines(columns);
      const allocated = largest(columns.entries, usage.allocated);
      top = Math.max(1, isLimitShown ? limit! : 0, allocated, most(data[1] as number[]));
      // Blocks that are lower than a pixel get no areas of their own.
      areas = areasOf(device.blocks, groupsOf(model, colour), columns, top / height);
      plot.setData(data);
      return;
    }
    drawOverlay();
  }

  /** The lines' points: the most reserved bytes of each column. */
  function lines(columns: Columns): uPlot.AlignedData {
    const { first, last, entries: of } = columns;
    const xs: number[] = [];
    const reserved: number[] = [];
    for (let column = 0; column < of.length; column++) {
      const begin = first + Math.ceil((column * (last - first + 1)) / of.length);
      const end = first + Math.ceil(((column + 1) * (last - first + 1)) / of.length);
      let top = 0;
      for (let entry = begin; entry < end; entry++) top = Math.max(top, usage.reserved[entry]!);
      xs.push(begin);
      reserved.push(top);
    }
    xs.push(last + 1);
    reserved.push(usage.reserved[last]!);
    const isKnown = (entry: number): boolean => capacity_until === null || entry < capacity_until;
    return [xs, reserved, xs.map((entry, i) =>
      limit !== null && isKnown(entry) && reserved[i]! <= limit ? limit : null)];
  }

  /** The labels, which change with the curves, and not with the selected moment. */
  function placed(u: uPlot, frame: Frame): Labels {
    const bounds = { left: 0, top: -STRIP, right: frame.width, bottom: frame.height };
    const found = new Labels(overlay.getContext("2d")!, bounds);
    placeMarks(found, device, usage.allocated, frame);
    if (limit !== null && !isLimitShown) {
      placeAtTop(found, `${limitName}: ${size(limit)}, above this ↑`, ink().limit, frame);
    }
    placeLineNames(found, u, frame);
    if (areas) placeNames(found, areas, groupsOf(model, selection.colour), frame);
    return found;
  }

  function drawOverlay(): void {
    if (!areas) return;
    const { entry, range, block } = selection.state;
    const [width, height] = [plot.over.clientWidth, plot.over.clientHeight];
    const context = prepare(overlay, width, height + STRIP);
    context.translate(0, STRIP);
    const frame = frameOf(plot, width, height);
    const colours = ink();
    const edge = (column: number): number => {
      const [first, last] = interval();
      return frame.x(first + (column * (last - first + 1)) / areas!.columns.entries.length);
    };
    if (range) {
      context.fillStyle = colours.band;
      context.strokeStyle = colours.text;
      const [left, right] = [frame.x(range[0]), frame.x(range[1] + 1)];
      context.fillRect(left, 0, Math.max(1, right - left), height);
      context.strokeRect(left, -1, Math.max(1, right - left), height + 2);
    }
    drawMarks(context, device, frame);
    const selected = areas?.blocks.find((area) => area.block === block);
    if (selected) {
      outline(context, selected, edge, frame);
      context.strokeStyle = colours.select;
      context.lineWidth = 2.5;
      context.stroke();
    }
    const x = (frame.x(entry) + frame.x(entry + 1)) / 2;
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
    labels?.draw(context, colours.paper);
    if (pointer) hover(frame);
    else tooltip.hide();
  }

  function hover(frame: Frame): void {
    const entry = entryAt(pointer!.x);
    const column = columnOf(areas!.columns, entry);
    const bytes = ((frame.height - pointer!.y) / frame.height) * plot.scales["y"]!.max!;
    const hit = hitAt(areas!, column, bytes);
    const groups = groupsOf(model, selection.colour);
    const text: string[] = [];
    if (hit?.block != null) text.push(...tooltipLines(model, hit.block));
    else if (hit) text.push(`${groups.names[hit.group]}: smaller blocks. Zoom in to see each one.`);
    const column_entry = areas!.columns.entries[column]!;
    text.push(
      `after event ${count(eventOf(column_entry))}: ${size(usage.allocated[column_entry]!)} allocated` +
        (usage.has_segments ? `, ${size(usage.reserved[column_entry]!)} reserved` : ""),
    );
    const swatch = hit ? colourOf(groups.swatch[hit.group]!) : null;
    tooltip.show(pointer!.x + plot.over.offsetLeft, pointer!.y, text, swatch);
  }

  const request = drawWhenNeeded(root, selection, draw);
  listen(plot.over, box, selection, entries, {
    move(at) {
      pointer = at;
      request();
    },
    click(x, y) {
      const column = columnOf(areas!.columns, entryAt(x));
      const bytes = (1 - y / plot.over.clientHeight) * plot.scales["y"]!.max!;
      // The column's own entry, so that the selected moment shows the block that was clicked.
      const entry = areas!.columns.entries[column]!;
      selection.update({ entry, block: hitAt(areas!, column, bytes)?.block ?? null });
    },
    entryAt,
  });
}

function line(
  label: string,
  stroke: () => string,
  dash: number[],
  show: boolean,
): uPlot.Series {
  return {
    ...{ label, stroke, dash, show },
    width: 1.6,
    points: { show: false },
    paths: uPlot.paths.stepped!({ align: 1 }),
  };
}

/** Return round sizes up to a maximum: about five. */
function byteSplits(max: number): number[] {
  const unit = 1024 ** Math.floor(Math.log(Math.max(1, max)) / Math.log(1024));
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 256, 512].map((step) => step * unit);
  const step = steps.find((wide) => max / wide <= 6) ?? max;
  const small = max / step < 2 ? step / 4 : step;
  const found: number[] = [];
  for (let at = 0; at <= max; at += small) found.push(at);
  return found;
}

function most(values: ArrayLike<number>): number {
  let found = 0;
  for (let i = 0; i < values.length; i++) found = Math.max(found, values[i]!);
  return found;
}

function largest(entries: Int32Array, values: Float64Array): number {
  return entries.reduce((found, entry) => Math.max(found, values[entry]!), 0);
}
