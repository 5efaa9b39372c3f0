/**
 * The segments of a device, with the blocks inside them, at any entry of its history.
 *
 * Blocks are kept in the order of their addresses, so that one pass over two integer columns gives
 * the active blocks of an entry, sorted, in about a millisecond for a million blocks. Segments
 * change rarely: they are replayed from the nearest of some stored copies.
 */

import type { Device, FileData, Layout, Layouts, Others, Segment } from "./model.ts";
import { endOf } from "./holes.ts";
import { firstWhere, sortRows } from "./sort.ts";
import { segmentSigns } from "./usage.ts";

/** The smallest number of segment events between two stored copies of the segments. */
const LEAST_INTERVAL = 64;

/** Return the layouts of a device. The order of the blocks is made when it is first needed. */
export function layoutsOf(file: FileData, device: Device): Layouts {
  const { blocks } = device;
  const segments = segmentHistory(file, device);
  let order: Uint32Array | null = null;
  let allocated: Int32Array;
  let freed: Int32Array;
  let active: Uint32Array;
  let last: Layout | null = null;

  function sorted(): Uint32Array {
    if (order) return order;
    const all = Uint32Array.from({ length: blocks.count }, (_, i) => i);
    order = sortRows(all, [{ value: (i) => blocks.address[i]!, descending: false }]);
    allocated = new Int32Array(blocks.count);
    freed = new Int32Array(blocks.count);
    active = new Uint32Array(blocks.count + 1);
    for (let i = 0; i < blocks.count; i++) {
      allocated[i] = blocks.alloc_event[order[i]!]!;
      freed[i] = blocks.free_event[order[i]!]!;
    }
    return order;
  }

  return {
    at(entry) {
      if (last?.entry === entry) return last;
      const found = sorted();
      let count = 0;
      for (let i = 0; i < found.length; i++) {
        // Written without a branch, which costs more than the write.
        active[count] = found[i]!;
        count += Number(allocated[i]! < entry) & Number(entry <= freed[i]!);
      }
      last = { entry, segments: segments(entry), blocks: active.slice(0, count) };
      return last;
    },
  };
}

/** Return a function that gives the segments at an entry. */
function segmentHistory(file: FileData, device: Device): (entry: number) => readonly Segment[] {
  if (device.is_cpu) return () => []; // it has none: its files have one for each block
  const { events, others } = device;
  const sign = segmentSigns(file);
  const expands = file.actions.map((name) => name === "segment_map" || name === "segment_unmap");
  const changes: number[] = [];
  for (let i = 0; i < events.count; i++) if (sign[events.action[i]!]) changes.push(i);
  const interval = Math.max(LEAST_INTERVAL, Math.ceil(Math.sqrt(changes.length)));

  function apply(segments: Segment[], event: number): void {
    const row = events.row[event]!;
    const action = events.action[event]!;
    if (row >= others.count) return;
    const part = segmentOf(others, row, expands[action]!);
    if (sign[action]! > 0) add(segments, part);
    else remove(segments, part);
  }

  const copies: Segment[][] = [firstSegments(device)];
  let current = copies[0]!.slice();
  for (let i = 0; i < changes.length; i++) {
    apply(current, changes[i]!);
    if ((i + 1) % interval === 0) copies.push(current.slice());
  }
  // The state that was asked for last, which a small step forward continues.
  let done = changes.length;

  return (entry) => {
    const wanted = firstWhere(changes.length, (i) => changes[i]! >= entry);
    const copy = Math.floor(wanted / interval);
    if (wanted < done || copy * interval > done) {
      current = copies[copy]!.slice();
      done = copy * interval;
    } else if (wanted > done) {
      current = current.slice();
    }
    while (done < wanted) apply(current, changes[done++]!);
    return current;
  };
}

function firstSegments(device: Device): Segment[] {
  const { segments } = device;
  return Array.from({ length: segments.count }, (_, row) =>
    segmentOf(segments, row, segments.is_expandable[row] === 1));
}

function segmentOf(table: Others, row: number, is_expandable: boolean): Segment {
  const { address, size_bytes, stream, pool, is_small } = table;
  return {
    address: address[row]!,
    size_bytes: size_bytes[row]!,
    stream: stream[row]!,
    pool: pool[row]!,
    is_small: is_small[row] === 1,
    is_expandable,
  };
}

/** Return the number of segments that begin at an address or before. */
function rank(segments: readonly Segment[], address: number): number {
  return firstWhere(segments.length, (i) => segments[i]!.address > address);
}

/** Add a part, joined with the mapped parts of its expandable segment around it. */
function add(segments: Segment[], part: Segment): void {
  let at = rank(segments, part.address);
  let dropped = 0;
  const [before, after] = [segments[at - 1], segments[at]];
  if (before && endOf(before) === part.address && belongTogether(before, part)) {
    part = { ...before, size_bytes: before.size_bytes + part.size_bytes };
    at -= 1;
    dropped += 1;
  }
  if (after && endOf(part) === after.address && belongTogether(part, after)) {
    part = { ...after, address: part.address, size_bytes: part.size_bytes + after.size_bytes };
    dropped += 1;
  }
  segments.splice(at, dropped, part);
}

/** Remove a part, which may leave a piece of the segment on each side. */
function remove(segments: Segment[], part: Segment): void {
  const at = rank(segments, part.address) - 1;
  const found = segments[at];
  if (!found || endOf(found) < endOf(part)) return;
  const pieces: Segment[] = [];
  if (found.address < part.address) {
    pieces.push({ ...found, size_bytes: part.address - found.address });
  }
  if (endOf(part) < endOf(found)) {
    pieces.push({ ...found, address: endOf(part), size_bytes: endOf(found) - endOf(part) });
  }
  segments.splice(at, 1, ...pieces);
}

function belongTogether(first: Segment, second: Segment): boolean {
  return (
    first.is_expandable &&
    second.is_expandable &&
    first.stream === second.stream &&
    first.pool === second.pool
  );
}
