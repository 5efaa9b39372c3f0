/**
 * The free memory of segments: its holes, and what of them blocks pin.
 *
 * An allocator gives a segment back only if all of it is free, and of an expandable segment each
 * page that is free. So free memory next to a block, in the segment or the page, is pinned. These
 * are the rules of pytracer.analysis.pinned_segments.
 */

import type { Blocks, Layout, Segment } from "./model.ts";
import { firstWhere } from "./sort.ts";

const UNIT_BYTES = 2 * 2 ** 20;
const PAGE_BYTES = 20 * 2 ** 20;

/** A part of a segment without a block, from `begin` to `end` (addresses). */
export interface Hole {
  begin: number;
  end: number;
  /** The part that can be given back; empty if `begin` equals `end`. */
  free: { begin: number; end: number };
}

/** The free memory of all segments at one moment. */
export interface FreeMemory {
  free_bytes: number;
  pinned_bytes: number;
  holes: number;
  largest_bytes: number;
}

/** Return the end of a segment: the address after it. */
export function endOf(segment: Segment): number {
  return segment.address + segment.size_bytes;
}

/** Return the position of the first active block at an address or after, in `layout.blocks`. */
export function firstBlock(layout: Layout, blocks: Blocks, address: number): number {
  return firstWhere(layout.blocks.length, (i) => blocks.address[layout.blocks[i]!]! >= address);
}

/** Call a function for each hole of a segment, by address. */
export function forEachHole(
  layout: Layout,
  blocks: Blocks,
  segment: Segment,
  call: (hole: Hole) => void,
): void {
  let at = segment.address;
  const end = endOf(segment);
  for (let i = firstBlock(layout, blocks, at); i < layout.blocks.length; i++) {
    const block = layout.blocks[i]!;
    const begin = blocks.address[block]!;
    if (begin >= end) break;
    if (begin > at) call(holeOf(segment, at, begin));
    at = Math.max(at, begin + blocks.size_bytes[block]!);
  }
  if (at < end) call(holeOf(segment, at, end));
}

function holeOf(segment: Segment, begin: number, end: number): Hole {
  const unit = !segment.is_expandable
    ? segment.size_bytes
    : segment.is_small
      ? UNIT_BYTES
      : PAGE_BYTES;
  const first = segment.address + Math.ceil((begin - segment.address) / unit) * unit;
  // The last page of a segment may be shorter than the others.
  const last =
    end === endOf(segment) ? end : segment.address + Math.floor((end - segment.address) / unit) * unit;
  const free = last > first ? { begin: first, end: last } : { begin, end: begin };
  return { begin, end, free };
}

/** Sum the free memory of a layout. */
export function freeMemory(layout: Layout, blocks: Blocks): FreeMemory {
  const found = { free_bytes: 0, pinned_bytes: 0, holes: 0, largest_bytes: 0 };
  for (const segment of layout.segments) {
    forEachHole(layout, blocks, segment, ({ begin, end, free }) => {
      found.holes += 1;
      found.free_bytes += end - begin;
      found.pinned_bytes += end - begin - (free.end - free.begin);
      found.largest_bytes = Math.max(found.largest_bytes, end - begin);
    });
  }
  return found;
}
