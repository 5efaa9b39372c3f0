/**
 * Where the segments of the memory map are: in rows, like words in lines of text.
 *
 * Segments of one kind share a scale, so that their lengths can be compared. A segment that is
 * longer than a row continues in the next one.
 */

import { endOf } from "./holes.ts";
import type { Layout, Segment } from "./model.ts";

export const ROW = 24;
export const HEADING = 22;
const GAP = 4;
const LEAST_WIDTH = 4;

/** A part of a segment in one row: from `begin` to `end` (addresses), from x to `right`. */
export interface Piece {
  segment: Segment;
  begin: number;
  end: number;
  x: number;
  right: number;
  y: number;
}

/** The segments of one pool and stream, and of one kind. */
export interface SegmentGroup {
  y: number;
  segments: Segment[];
  bytes: number;
  bytes_per_pixel: number;
  /** The parts of the segments, by row and x. */
  pieces: Piece[];
}

export interface MapRows {
  groups: SegmentGroup[];
  height: number;
}

/** The share of the view's rows that all small segments fill at a magnification of 1. */
const SHARE_SMALL = 0.25;
/** The least bytes of a row: a few of the smallest segments, which have 20 MiB and 2 MiB. */
const LEAST_ROW_LARGE = 128 * 2 ** 20;
const LEAST_ROW_SMALL = 16 * 2 ** 20;

/**
 * Arrange the segments of a layout in rows of a width in pixels, which about fill the height; the
 * first one is at `top`.
 */
export function mapRows(
  layout: Layout, width: number, height: number, magnification: number, top = 0,
): MapRows {
  const byKey = new Map<string, Segment[]>();
  let [large, small] = [0, 0];
  for (const segment of layout.segments) {
    const key = [
      segment.is_small ? 1 : 0,
      String(segment.pool).padStart(9),
      String(segment.stream).padStart(20),
      segment.is_expandable ? 1 : 0,
    ].join(" ");
    const group = byKey.get(key);
    if (group) group.push(segment);
    else byKey.set(key, [segment]);
    if (segment.is_small) small += segment.size_bytes;
    else large += segment.size_bytes;
  }
  const rowsOfView = Math.max(4, Math.floor(height / ROW) - byKey.size);
  const scales = [
    bytesOfRow(large / (rowsOfView * (1 - SHARE_SMALL)), LEAST_ROW_LARGE) / width,
    bytesOfRow(small / (rowsOfView * SHARE_SMALL), LEAST_ROW_SMALL) / width,
  ];
  let y = top;
  const groups: SegmentGroup[] = [];
  for (const key of [...byKey.keys()].sort()) {
    const segments = byKey.get(key)!;
    const bytes_per_pixel = scales[segments[0]!.is_small ? 1 : 0]! / magnification;
    const { pieces, rows } = arrange(segments, width, bytes_per_pixel, y + HEADING);
    const bytes = segments.reduce((sum, segment) => sum + segment.size_bytes, 0);
    groups.push({ y, segments, bytes, bytes_per_pixel, pieces });
    y += HEADING + rows * ROW + 4;
  }
  return { groups, height: y };
}

/** Return a power of two: people can read it, and it changes rarely while the moment moves. */
function bytesOfRow(wanted: number, least: number): number {
  return Math.max(least, 2 ** Math.ceil(Math.log2(Math.max(1, wanted))));
}

function arrange(
  segments: readonly Segment[],
  width: number,
  scale: number,
  top: number,
): { pieces: Piece[]; rows: number } {
  const pieces: Piece[] = [];
  let x = 0;
  let row = 0;
  for (const segment of segments) {
    const wanted = Math.max(LEAST_WIDTH, segment.size_bytes / scale);
    if (x > 0 && x + Math.min(wanted, width) > width) {
      row += 1;
      x = 0;
    }
    let begin = segment.address;
    for (;;) {
      const isLast = x + Math.max(LEAST_WIDTH, (endOf(segment) - begin) / scale) <= width;
      const end = isLast ? endOf(segment) : begin + (width - x) * scale;
      const right = isLast ? x + Math.max(LEAST_WIDTH, (end - begin) / scale) : width;
      pieces.push({ segment, begin, end: Math.min(end, endOf(segment)), x, right, y: top + row * ROW });
      begin = end;
      if (isLast || begin >= endOf(segment)) {
        x = right + GAP;
        break;
      }
      row += 1;
      x = 0;
    }
  }
  return { pieces, rows: row + 1 };
}

/** Return the piece at a point; null between segments. */
export function pieceAt(rows: MapRows, x: number, y: number): Piece | null {
  for (const group of rows.groups) {
    for (const piece of group.pieces) {
      if (y >= piece.y && y < piece.y + ROW && x >= piece.x && x < piece.right) return piece;
    }
  }
  return null;
}

/** Return the address at an x of a piece. */
export function addressAt(piece: Piece, x: number): number {
  return piece.begin + ((x - piece.x) / (piece.right - piece.x)) * (piece.end - piece.begin);
}

/** Return the piece that holds an address. */
export function pieceOf(rows: MapRows, address: number): Piece | null {
  for (const group of rows.groups) {
    for (const piece of group.pieces) {
      if (address >= piece.begin && address < piece.end) return piece;
    }
  }
  return null;
}
