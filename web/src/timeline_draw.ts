/** Drawing of the timeline: stacked areas, lanes of steps and phases, marks, and the selection. */

import type uPlot from "uplot";
import type { Areas, BlockArea } from "./areas.ts";
import { colourOf, ink, type Groups } from "./colours.ts";
import type { Device } from "./model.ts";
import { size } from "./text.ts";

/** The pixels left of the plot, for the sizes, and right of it, for half of a label. */
export const LEFT = 74;
export const RIGHT = 42;

/** Where the plot is, and how entries and bytes become its pixels. */
export interface Frame {
  width: number;
  height: number;
  /** The x of the left edge of an entry. */
  x(entry: number): number;
  /** The y of a number of bytes. */
  y(bytes: number): number;
}

/** Draw the layers, the blocks with areas of their own, and the names of thick layers. */
export function drawAreas(
  context: CanvasRenderingContext2D,
  areas: Areas,
  groups: Groups,
  frame: Frame,
): void {
  const { tops, columns } = areas;
  const count = columns.entries.length;
  const span = columns.last - columns.first + 1;
  const edge = (column: number): number => frame.x(columns.first + (column * span) / count);
  for (const [group, top] of tops.entries()) {
    const below = group ? tops[group - 1]! : null;
    context.beginPath();
    for (let column = 0; column < count; column++) {
      const y = frame.y(top[column]!);
      context.lineTo(edge(column), y);
      context.lineTo(edge(column + 1), y);
    }
    for (let column = count - 1; column >= 0; column--) {
      const y = frame.y(below ? below[column]! : 0);
      context.lineTo(edge(column + 1), y);
      context.lineTo(edge(column), y);
    }
    context.fillStyle = colourOf(groups.swatch[group]!);
    context.fill();
  }
  context.strokeStyle = ink().paper;
  context.globalAlpha = 0.55;
  context.lineWidth = 0.6;
  for (const area of areas.blocks) {
    if (frame.y(0) - frame.y(area.bytes) < 2) continue;
    outline(context, area, edge, frame);
    context.stroke();
  }
  context.globalAlpha = 1;
  drawNames(context, areas, groups, frame, edge);
}

/** Trace the outline of a block's area. */
export function outline(
  context: CanvasRenderingContext2D,
  area: BlockArea,
  edge: (column: number) => number,
  frame: Frame,
): void {
  const { from, bottom, bytes } = area;
  context.beginPath();
  for (let i = 0; i < bottom.length; i++) {
    const y = frame.y(bottom[i]! + bytes);
    context.lineTo(edge(from + i), y);
    context.lineTo(edge(from + i + 1), y);
  }
  for (let i = bottom.length - 1; i >= 0; i--) {
    const y = frame.y(bottom[i]!);
    context.lineTo(edge(from + i + 1), y);
    context.lineTo(edge(from + i), y);
  }
  context.closePath();
}

/** Write the name of each layer where it is thickest, so that colour is not its only sign. */
function drawNames(
  context: CanvasRenderingContext2D,
  { tops, columns }: Areas,
  groups: Groups,
  frame: Frame,
  edge: (column: number) => number,
): void {
  const count = columns.entries.length;
  context.font = "600 11px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (const [group, top] of tops.entries()) {
    const below = group ? tops[group - 1]! : null;
    const name = shortened(groups.names[group]!);
    const needed = context.measureText(name).width + 8;
    // The text needs a rectangle that is free in all its columns.
    const columnsNeeded = Math.ceil((needed / Math.max(1, frame.width)) * count);
    let best = { height: 13, column: -1, y: 0 };
    const stride = Math.max(1, Math.floor(columnsNeeded / 6));
    for (let column = 0; column + columnsNeeded <= count; column += stride) {
      let ceiling = Infinity;
      let floor = 0;
      for (let i = column; i < column + columnsNeeded; i++) {
        ceiling = Math.min(ceiling, top[i]!);
        floor = Math.max(floor, below ? below[i]! : 0);
      }
      const height = frame.y(floor) - frame.y(ceiling);
      if (height > best.height) best = { height, column, y: frame.y((floor + ceiling) / 2) };
    }
    if (best.column < 0) continue;
    const x = edge(best.column) + 4;
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeStyle = ink().paper;
    context.strokeText(name, x, best.y);
    context.fillStyle = ink().text;
    context.fillText(name, x, best.y);
  }
}

/** Return the end of a long name: of a call site, the line and the function. */
function shortened(name: string): string {
  return name.length > 48 ? `…${name.slice(-47)}` : name;
}

/** Write the names of the lines, of the reserved bytes and the limit, next to them. */
export function drawLineNames(context: CanvasRenderingContext2D, plot: uPlot, frame: Frame): void {
  context.font = "600 11px system-ui, sans-serif";
  context.textBaseline = "middle";
  const [xs] = plot.data;
  const taken: { left: number; right: number; y: number }[] = [];
  for (const [i, series] of plot.series.entries()) {
    const values = plot.data[i];
    if (i === 0 || !series.show || !values) continue;
    const text = String(series.label);
    const width = context.measureText(text).width + 6;
    // From the right, the first place without another name.
    for (let at = xs.length - 1; at >= 0; at -= Math.max(1, xs.length >> 5)) {
      const value = values[at];
      const left = Math.min(frame.width, frame.x(xs[at]!)) - width;
      if (value == null || left < 0) continue;
      const y = Math.max(8, frame.y(value) - 9);
      const isTaken = taken.some((one) =>
        Math.abs(one.y - y) < 15 && left < one.right && one.left < left + width);
      if (isTaken) continue;
      taken.push({ left, right: left + width, y });
      context.globalAlpha = 0.85;
      context.fillStyle = ink().paper;
      context.fillRect(left, y - 7, width, 14);
      context.globalAlpha = 1;
      context.fillStyle = i === 1 ? ink().reserved : ink().limit;
      context.fillText(text, left + 3, y);
      break;
    }
  }
}

/** Shade every second step over the height of the plot. */
export function drawStepBands(
  context: CanvasRenderingContext2D,
  device: Device,
  frame: Frame,
): void {
  context.fillStyle = ink().band;
  for (let i = 0; i < device.steps.length; i += 2) {
    const begin = frame.x(device.steps[i]![1] + 1);
    const end = frame.x((device.steps[i + 1]?.[1] ?? device.events.count) + 1);
    if (end < 0 || begin > frame.width || end - begin < 2) continue;
    context.fillRect(begin, 0, end - begin, frame.height);
  }
}

const MARK_TEXTS: Readonly<Record<string, string>> = {
  oom: "Out of memory",
  end: "End",
  exact: "Before: at least this much",
};

/** Mark the peak, out-of-memory errors and the end, with lines and names. */
export function drawMarks(
  context: CanvasRenderingContext2D,
  device: Device,
  allocated: Float64Array,
  frame: Frame,
): void {
  const colours = ink();
  context.font = "600 11px system-ui, sans-serif";
  context.textBaseline = "top";
  // Out-of-memory errors come first, so that their names take the place.
  const marks: { event: number; kind: string }[] = [...device.marks];
  if (device.exact_from > 0) marks.push({ event: device.exact_from - 1, kind: "exact" });
  marks.sort((a, b) => Number(b.kind === "oom") - Number(a.kind === "oom"));
  const taken: [number, number, number][] = [];
  for (const mark of marks) {
    const x = frame.x(mark.event + 1);
    if (x < -1 || x > frame.width + 1) continue;
    context.strokeStyle = context.fillStyle = mark.kind === "oom" ? colours.alarm : colours.text;
    context.lineWidth = mark.kind === "oom" ? 2 : 1;
    context.setLineDash(mark.kind === "oom" ? [] : [4, 3]);
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, frame.height);
    context.stroke();
    context.setLineDash([]);
    const text =
      mark.kind === "peak"
        ? `Peak ${size(allocated[mark.event + 1] ?? 0)}`
        : MARK_TEXTS[mark.kind]!;
    const width = context.measureText(text).width + 6;
    const left = x + width + 4 > frame.width ? x - width - 2 : x + 2;
    let row = 0;
    while (taken.some(([a, b, at]) => at === row && left < b && left + width > a)) row += 1;
    if (row > 3) continue;
    taken.push([left, left + width, row]);
    context.globalAlpha = 0.85;
    const fill = context.fillStyle;
    context.fillStyle = colours.paper;
    context.fillRect(left, 2 + row * 15, width, 14);
    context.globalAlpha = 1;
    context.fillStyle = fill;
    context.fillText(text, left + 3, 3 + row * 15);
  }
}

/** The height of one lane of steps or phases. */
export const LANE = 15;

/** Return the number of lanes above the plot: steps, and phases by depth, at most three. */
export function laneCount(device: Device): number {
  const depth = Math.min(3, device.spans.reduce((most, span) => Math.max(most, span.depth + 1), 0));
  return (device.steps.length ? 1 : 0) + depth;
}

/** Draw the lanes: named intervals of steps and of phases. */
export function drawLanes(context: CanvasRenderingContext2D, device: Device, frame: Frame): void {
  const colours = ink();
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  const first = device.steps.length ? 1 : 0;
  let drawn = -1;
  const late: [string, number][] = [];
  const lane = (row: number, begin: number, end: number, text: string, tint: number): void => {
    const [left, right] = [Math.max(0, frame.x(begin)), Math.min(frame.width, frame.x(end))];
    if (right <= 0 || left >= frame.width || right - left < 0.7) return;
    context.fillStyle = row < first ? colours.grid : colourOf(tint);
    context.globalAlpha = row < first ? 1 : 0.35;
    context.fillRect(left, row * LANE, Math.max(0.5, right - left - 1), LANE - 1);
    context.globalAlpha = 1;
    context.fillStyle = colours.text;
    const width = context.measureText(text).width;
    const isNarrow = width + 6 > right - left;
    if (!isNarrow) context.fillText(text, left + 3, row * LANE + LANE / 2);
    // Names of narrow steps are written over the next ones, where there is room.
    else if (row < first && left >= drawn && left + width < frame.width) {
      drawn = left + width + 10;
      late.push([text, left + 3]);
    }
  };
  for (const [i, [step, begin]] of device.steps.entries()) {
    const end = device.steps[i + 1]?.[1] ?? device.events.count;
    lane(0, begin + 1, end + 1, `step ${step}`, 0);
  }
  context.fillStyle = colours.text;
  for (const [text, x] of late) context.fillText(text, x, LANE / 2);
  const tints = new Map<string, number>();
  for (const span of device.spans) {
    if (!tints.has(span.name)) tints.set(span.name, tints.size % 11);
    if (span.depth > 2) continue;
    lane(first + span.depth, span.begin + 1, span.end + 1, span.name, tints.get(span.name)!);
  }
}
