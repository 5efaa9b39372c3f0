/** Drawing of the timeline: stacked areas, lanes of steps and phases, marks, and the selection. */

import type { Areas, BlockArea } from "./areas.ts";
import type { Axis } from "./axis.ts";
import { colourOf, ink, type Groups } from "./colours.ts";
import type { Device } from "./model.ts";
import { LABEL, Labels } from "./labels.ts";
import { shortName, size } from "./text.ts";

/** The pixels left of the plot, for the sizes, and right of it, for half of a label. */
export const LEFT = 74;
export const RIGHT = 48;
/** The pixels below the plot, for the events. */
export const AXIS = 22;

/** Where the plot is, and how entries and bytes become its pixels. */
export interface Frame {
  width: number;
  height: number;
  /** The bytes at the lower and at the upper edge. */
  low: number;
  top: number;
  axis: Axis;
  /** The places of the axis at the left and at the right edge. */
  begin: number;
  end: number;
  /** The x of a place of the axis. */
  at(place: number): number;
  /** The x of the left edge of an entry. */
  x(entry: number): number;
  /** The y of a number of bytes. */
  y(bytes: number): number;
  /** The bytes at a y. */
  bytes(y: number): number;
  /** The entry at an x, as a fraction. */
  entry(x: number): number;
}

/** Draw the layers, and the blocks with areas of their own. */
export function drawAreas(
  context: CanvasRenderingContext2D, areas: Areas, groups: Groups, frame: Frame,
): void {
  const { tops, columns } = areas;
  const count = columns.entries.length;
  const edge = edgesOf(areas, frame);
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
    outline(context, area, areas, frame);
    context.stroke();
  }
  context.globalAlpha = 1;
}

/** Return a function that gives the x of the left edge of a column. */
function edgesOf({ columns: { entries } }: Areas, { width }: Frame) {
  return (column: number): number => (column * width) / entries.length;
}

/** Trace the outline of a block's area. */
export function outline(
  context: CanvasRenderingContext2D, area: BlockArea, areas: Areas, frame: Frame,
): void {
  const edge = edgesOf(areas, frame);
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

/** Place the name of each layer where it is thickest, so that colour is not its only sign. */
export function placeNames(labels: Labels, { tops, columns }: Areas, groups: Groups, frame: Frame): void {
  const count = columns.entries.length;
  for (const [group, top] of tops.entries()) {
    const below = group ? tops[group - 1]! : null;
    const name = shortName(groups.names[group]!, 40);
    // The text needs a rectangle that is free in all its columns.
    const needed = Math.ceil((labels.width(name) / Math.max(1, frame.width)) * count);
    const found: { height: number; x: number; y: number }[] = [];
    const stride = Math.max(1, Math.floor(needed / 6));
    for (let column = 0; column + needed <= count; column += stride) {
      let ceiling = frame.top;
      let floor = frame.low;
      for (let i = column; i < column + needed; i++) {
        ceiling = Math.min(ceiling, top[i]!);
        floor = Math.max(floor, below ? below[i]! : 0);
      }
      const height = frame.y(floor) - frame.y(ceiling);
      const y = frame.y((floor + ceiling) / 2) - LABEL / 2;
      if (height >= LABEL) found.push({ height, x: (column / count) * frame.width, y });
    }
    found.sort((a, b) => b.height - a.height);
    labels.place(name, ink().text, found.map(({ x, y }) => [x, y]));
  }
}

/** A line of the plot: its bytes at each x (pixels), which hold up to the next one; null: unknown. */
export interface Line {
  name: string;
  colour: string;
  dash: number[];
  values: (number | null)[];
}

/** Draw lines as steps. */
export function drawLines(
  context: CanvasRenderingContext2D, xs: readonly number[], lines: readonly Line[], frame: Frame,
): void {
  context.lineWidth = 1.6;
  for (const { colour, dash, values } of lines) {
    context.strokeStyle = colour;
    context.setLineDash(dash);
    context.beginPath();
    for (let i = 0; i + 1 < xs.length; i++) {
      if (values[i] == null) continue;
      const y = frame.y(values[i]!);
      if (i === 0 || values[i - 1] == null) context.moveTo(xs[i]!, y);
      else context.lineTo(xs[i]!, y);
      context.lineTo(xs[i + 1]!, y);
    }
    context.stroke();
  }
  context.setLineDash([]);
}

const AXIS_FONT = "12px system-ui, sans-serif";
/** The least pixels between two numbers of the axis. */
const SPACE = 140;

/**
 * Draw a grid with round sizes, and round numbers of events or round times.
 *
 * @param offset What to add to a place for its number.
 * @param text The text of a number; `step` is the distance to the next one.
 */
export function drawAxes(
  context: CanvasRenderingContext2D, frame: Frame, offset: number,
  text: (number: number, step: number, isFirst: boolean) => string,
): void {
  const { width, height } = frame;
  context.font = AXIS_FONT;
  const write = (words: string, x: number, y: number, line: [number, number, number, number]): void => {
    context.fillStyle = ink().grid;
    context.fillRect(...line);
    context.fillStyle = ink().faint;
    context.fillText(words, x, y);
  };
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const bytes of byteSplits(frame.low, frame.top)) {
    const y = Math.round(frame.y(bytes));
    write(size(bytes), -9, y, [-5, y, width + 5, 1]);
  }
  context.textAlign = "left";
  context.textBaseline = "top";
  const [first, last] = [frame.begin + offset, frame.end + offset];
  const least = Math.max(1, ((last - first) * Math.min(SPACE, width / 2.5)) / width);
  const unit = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((each) => each * unit).find((each) => each >= least)!;
  let right = -Infinity;
  for (let number = Math.max(0, Math.ceil(first / step) * step); number <= last; number += step) {
    const place = number - offset;
    if (place < 1 && !frame.axis.isTime) continue; // an event takes effect at the entry after it
    const x = Math.round(frame.at(place));
    const words = text(number, step, right < 0);
    const half = context.measureText(words).width / 2;
    if (x + half > width + RIGHT) break;
    if (x - half < right) continue;
    write(words, x - half, height + 7, [x, 0, 1, height + 4]);
    right = x + half + 12;
  }
}

/** Return round sizes between two: about five. */
function byteSplits(min: number, top: number): number[] {
  const max = top - min;
  const unit = 1024 ** Math.floor(Math.log(Math.max(1, max)) / Math.log(1024));
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 256, 512].map((step) => step * unit);
  const step = steps.find((wide) => max / wide <= 6) ?? max;
  const small = max / step < 2 ? step / 4 : step;
  const found: number[] = [];
  for (let at = Math.ceil(min / small) * small; at <= top; at += small) found.push(at);
  return found;
}

/** Place the names of lines above or below them. */
export function placeLineNames(
  labels: Labels, xs: readonly number[], lines: readonly Line[], frame: Frame,
): void {
  for (const { name: text, colour, values } of lines) {
    const width = labels.width(text);
    // From the right to the left; where the line is higher below the text, above that part.
    const points: [number, number][] = [];
    const stride = Math.max(1, xs.length >> 5);
    for (let at = xs.length - 1; at >= 0; at -= stride) {
      const left = Math.min(frame.width, xs[at]!) - width;
      let highest = frame.height;
      let lowest = 0;
      for (let j = at; j >= 0 && xs[j]! >= left; j--) {
        if (values[j] == null) continue;
        highest = Math.min(highest, frame.y(values[j]!));
        lowest = Math.max(lowest, frame.y(values[j]!));
      }
      if (values[at] != null) points.push([left, highest - LABEL - 2], [left, lowest + 2]);
    }
    labels.place(text, colour, points);
  }
}

/** Place a text above the plot, or else at its upper edge, as far right as there is room. */
export function placeAtTop(labels: Labels, text: string, colour: string, frame: Frame): void {
  const points: [number, number][] = [];
  for (const y of [1 - STRIP, 1]) {
    for (let x = frame.width - labels.width(text); x >= 0; x -= 8) points.push([x, y]);
  }
  labels.place(text, colour, points);
}

/** Shade every second step over the height of the plot. */
export function drawStepBands(
  context: CanvasRenderingContext2D, device: Device, frame: Frame,
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

type MarkOfPlot = { event: number; kind: string };

/** Return the moments with a line: marks, and the one from which sizes are exact. */
function marksOf(device: Device): MarkOfPlot[] {
  return device.exact_from > 0
    ? [...device.marks, { event: device.exact_from - 1, kind: "exact" }] : device.marks;
}

/** Draw a line at the peak, out-of-memory errors and the end. */
export function drawMarks(context: CanvasRenderingContext2D, device: Device, frame: Frame): void {
  for (const { event, kind } of marksOf(device)) {
    const x = frame.x(event + 1);
    if (x < -1 || x > frame.width + 1) continue;
    context.strokeStyle = kind === "oom" ? ink().alarm : ink().text;
    context.lineWidth = kind === "oom" ? 2 : 1;
    context.setLineDash(kind === "oom" ? [] : [4, 3]);
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, frame.height);
    context.stroke();
  }
  context.setLineDash([]);
}

/** The height above the plot that is free for the names of marks. */
export const STRIP = LABEL + 2;
/** Marks that are at most this many pixels apart have one label. */
const NEAR = 4;
/** The rows of names in the plot, where the strip is full: more would cover the curves. */
const ROWS = 3;

/** Place the names of the marks next to their lines: above the plot, or else stacked in it. */
export function placeMarks(
  labels: Labels, device: Device, allocated: Float64Array, frame: Frame,
): void {
  const groups: { x: number; texts: Set<string>; isOom: boolean }[] = [];
  for (const { event, kind } of [...marksOf(device)].sort((a, b) => a.event - b.event)) {
    const x = frame.x(event + 1);
    if (x < -1 || x > frame.width + 1) continue;
    let group = groups.at(-1);
    if (!group || x - group.x > NEAR) groups.push((group = { x, texts: new Set(), isOom: false }));
    group.isOom ||= kind === "oom";
    group.texts.add(kind === "peak" ? `Peak ${size(allocated[event + 1] ?? 0)}` : MARK_TEXTS[kind]!);
  }
  // Out-of-memory errors come first, so that their names take the place.
  groups.sort((a, b) => Number(b.isOom) - Number(a.isOom));
  for (const { x, texts, isOom } of groups) {
    const place = (text: string): boolean => {
      const sides = [x + 2, x - 2 - labels.width(text)];
      const rows = Array.from({ length: ROWS + 1 }, (_, row) => row * (LABEL + 1) - STRIP + 1);
      const points = rows.flatMap((y) => sides.map((left) => [left, y] as const));
      return labels.place(text, isOom ? ink().alarm : ink().text, points);
    };
    if (!place([...texts].join(" · "))) for (const text of texts) place(text);
  }
}

/** The height of one lane of steps or phases. */
export const LANE = 15;

/** Return the number of lanes above the plot: steps, and phases by depth, at most three. */
export function laneCount(device: Device): number {
  const depth = Math.min(3, device.spans.reduce((most, span) => Math.max(most, span.depth + 1), 0));
  return (device.steps.length ? 1 : 0) + depth;
}

/** Draw the lanes: intervals of steps and of phases; these have colours if the areas have theirs. */
export function drawLanes(
  context: CanvasRenderingContext2D, device: Device, phases: Groups | null, frame: Frame,
): void {
  const first = device.steps.length ? 1 : 0;
  const bounds = { left: 0, top: 0, right: frame.width, bottom: laneCount(device) * LANE };
  const labels = new Labels(context, bounds);
  const narrow: [string, number, number][] = [];
  const lane = (row: number, from: number, to: number, text: string, fill: string): void => {
    const [left, right] = [Math.max(0, from), Math.min(frame.width, to)];
    if (right <= 0 || left >= frame.width || right - left < 0.7) return;
    context.fillStyle = fill;
    context.fillRect(left, row * LANE, Math.max(0.5, right - left - 1), LANE - 1);
    if (labels.width(text) <= right - left) labels.place(text, ink().text, [[left, row * LANE]]);
    else narrow.push([text, left, row * LANE]);
  };
  for (const [i, [step, begin]] of device.steps.entries()) {
    const end = device.steps[i + 1]?.[1] ?? device.events.count;
    lane(0, frame.x(begin + 1), frame.x(end + 1), `step ${step}`, ink().grid);
  }
  const swatches = new Map(phases?.names.map((name, i) => [name, phases.swatch[i]!]));
  for (const { name, depth, begin, end, begin_us, end_us } of device.spans) {
    const swatch = swatches.get(name);
    const fill = swatch === undefined ? ink().grid : colourOf(swatch);
    if (depth > 2) continue;
    // A phase takes time also if nothing was allocated in it.
    const [from, to] = frame.axis.isTime ? [frame.at(begin_us), frame.at(end_us)]
      : [frame.x(begin + 1), frame.x(end + 1)];
    lane(first + depth, from, to, name, fill);
  }
  // Names of narrow intervals are written over the next ones, where there is room.
  for (const [text, left, top] of narrow) labels.place(text, ink().text, [[left, top]]);
  labels.draw(context, phases ? ink().paper : "transparent");
}
