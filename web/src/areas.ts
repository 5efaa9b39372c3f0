/**
 * The stacked areas of the timeline: one column for each pixel, with the bytes of each group, and
 * the largest blocks as areas of their own.
 *
 * A column shows the entry of its interval that has the most allocated bytes, so that no peak
 * disappears between two pixels. Everything here is computed again for each zoom, in one pass over
 * the blocks.
 */

import { type Axis, firstFrom } from "./axis.ts";
import type { Groups } from "./colours.ts";
import type { Blocks } from "./model.ts";

/** The most blocks that get areas of their own. */
export const MOST_AREAS = 400;

export interface Columns {
  axis: Axis;
  /** The entries that the columns show: first and last. */
  first: number;
  last: number;
  /** For each column its entry. */
  entries: Int32Array;
  /** For each column the first entry of its interval, and the one after the last. */
  from: Int32Array;
  to: Int32Array;
}

/** The area of one block: its lower edge in each column of its life. */
export interface BlockArea {
  block: number;
  group: number;
  bytes: number;
  /** The first column. */
  from: number;
  bottom: Float64Array;
}

export interface Areas {
  columns: Columns;
  /** For each group, lowest first: its upper edge in each column, in bytes. */
  tops: Float64Array[];
  /** The areas of blocks; the rest of a group is above them. */
  blocks: BlockArea[];
}

/** Choose the entries of the columns, at most `width` of them. */
export function columnsOf(
  allocated: Float64Array, axis: Axis, first: number, last: number, width: number,
): Columns {
  // An entry that is wider than a pixel needs one column, if all entries are equally wide.
  const count = axis.isTime ? width : Math.min(width, last - first + 1);
  const [entries, from, to] = [0, 0, 0].map(() => new Int32Array(count)) as [
    Int32Array, Int32Array, Int32Array];
  const begin = axis.at(first);
  const length = axis.at(last + 1) - begin;
  let next = first;
  for (let column = 0; column < count; column++) {
    const end = column + 1 < count
      ? Math.max(next, Math.min(last + 1, firstFrom(axis, begin + ((column + 1) * length) / count)))
      : last + 1;
    // Without an entry that begins in the column, it shows the one before.
    let best = (from[column] = Math.max(first, Math.min(next, end - 1)));
    to[column] = Math.max(best + 1, end);
    for (let entry = best + 1; entry < end; entry++) {
      if (allocated[entry]! > allocated[best]!) best = entry;
    }
    entries[column] = best;
    next = end;
  }
  return { axis, first, last, entries, from, to };
}

/** Return the first column whose entry is this one or a later one; the number of columns if none. */
function columnFrom({ first, last, entries, axis }: Columns, scale: number, entry: number): number {
  if (entry <= first) return 0;
  if (entry > last) return entries.length;
  const begins = Math.floor((axis.at(entry) - axis.at(first)) * scale);
  let column = Math.max(0, Math.min(entries.length - 1, begins));
  if (entries[column]! < entry) return column + 1;
  while (column > 0 && entries[column - 1]! >= entry) column -= 1; // the place may be rounded up
  return column;
}

/**
 * Stack the groups, and within each group its largest blocks in the order of their allocation.
 *
 * `least` is the size of the smallest block that is worth an area: about the bytes of a pixel.
 */
export function areasOf(blocks: Blocks, groups: Groups, columns: Columns, least: number): Areas {
  const width = columns.entries.length;
  const tops = groups.names.map(() => new Float64Array(width + 1));
  const from = new Int32Array(blocks.count);
  const to = new Int32Array(blocks.count);
  const { axis, first: start, last } = columns;
  const scale = width / (axis.at(last + 1) - axis.at(start) || 1);
  for (let i = 0; i < blocks.count; i++) {
    const begin = blocks.alloc_event[i]! + 1;
    if (begin > columns.last) break; // blocks are in the order of their allocation
    const end = blocks.free_requested_event[i]!; // the last entry at which it is allocated
    if (end < columns.first) continue;
    const first = columnFrom(columns, scale, begin);
    const after = columnFrom(columns, scale, end + 1);
    if (first >= after) continue;
    const top = tops[groups.of[i]!]!;
    top[first]! += blocks.size_bytes[i]!;
    top[after]! -= blocks.size_bytes[i]!;
    from[i] = first;
    to[i] = after;
  }
  for (const top of tops) {
    for (let column = 1; column < width; column++) top[column]! += top[column - 1]!;
  }
  for (let group = 1; group < tops.length; group++) {
    const [top, below] = [tops[group]!, tops[group - 1]!];
    for (let column = 0; column < width; column++) top[column]! += below[column]!;
  }
  const stacked = new Map<number, Float64Array>();
  const found: BlockArea[] = [];
  for (const block of largest(blocks, from, to, least)) {
    const group = groups.of[block]!;
    let level = stacked.get(group);
    if (!level) {
      level = group ? tops[group - 1]!.slice() : new Float64Array(width + 1);
      stacked.set(group, level);
    }
    const bytes = blocks.size_bytes[block]!;
    const bottom = level.slice(from[block]!, to[block]!);
    for (let column = from[block]!; column < to[block]!; column++) level[column]! += bytes;
    found.push({ block, group, bytes, from: from[block]!, bottom });
  }
  return { columns, tops, blocks: found };
}

/** Return the blocks with the largest areas, in the order of their allocation. */
function largest(blocks: Blocks, from: Int32Array, to: Int32Array, least: number): number[] {
  // A histogram of the logarithms of the areas gives the threshold without sorting all blocks.
  const bins = new Uint32Array(1024);
  const bin = (i: number): number =>
    Math.floor(16 * Math.log2(blocks.size_bytes[i]! * (to[i]! - from[i]!)));
  const shown: number[] = [];
  for (let i = 0; i < blocks.count; i++) {
    if (to[i]! > from[i]! && blocks.size_bytes[i]! >= least) {
      shown.push(i);
      bins[bin(i)]! += 1;
    }
  }
  let threshold = bins.length;
  for (let count = 0; threshold > 0 && count + bins[threshold - 1]! <= MOST_AREAS; ) {
    threshold -= 1;
    count += bins[threshold]!;
  }
  const chosen = shown.filter((block) => bin(block) >= threshold);
  // Many equal blocks can share the bin at the threshold: then the first ones fill the places.
  for (const block of shown) {
    if (chosen.length >= MOST_AREAS) break;
    if (bin(block) === threshold - 1) chosen.push(block);
  }
  return chosen.sort((a, b) => a - b);
}

/** What is at a point of the timeline: a group, and a block if it has an area of its own. */
export interface Hit {
  group: number;
  block: number | null;
}

/** Return what is at a column and a height in bytes; null above all areas. */
export function hitAt(areas: Areas, column: number, bytes: number): Hit | null {
  const group = areas.tops.findIndex((top) => bytes < top[column]!);
  if (group < 0 || bytes < 0) return null;
  for (const area of areas.blocks) {
    const bottom = area.group === group ? area.bottom[column - area.from] : undefined;
    if (bottom !== undefined && bytes >= bottom && bytes < bottom + area.bytes) {
      return { group, block: area.block };
    }
  }
  return { group, block: null };
}

/**
 * Return the bytes of each group, and their blocks, that are allocated at an entry.
 *
 * @param active The blocks that are active at the entry, of the layout there.
 */
export function groupsAt(
  blocks: Blocks,
  groups: Groups,
  entry: number,
  active: Uint32Array,
): { bytes: Float64Array; counts: Uint32Array } {
  const bytes = new Float64Array(groups.names.length);
  const counts = new Uint32Array(groups.names.length);
  for (const i of active) {
    if (entry > blocks.free_requested_event[i]!) continue;
    bytes[groups.of[i]!]! += blocks.size_bytes[i]!;
    counts[groups.of[i]!]! += 1;
  }
  return { bytes, counts };
}
