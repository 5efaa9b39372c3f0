/**
 * When blocks were allocated and freed: states at a moment, life in steps, and what a range of time
 * left behind.
 *
 * Entry e of a history is after event e - 1. A block is allocated at entry e if
 * `alloc < e <= freeRequested`, and active if `alloc < e <= free`.
 */

import { type Blocks, type Steps, stepIndexAt } from "./model.ts";

/** The columns of blocks that lives need. */
export type Lives = Pick<
  Blocks, "count" | "size_bytes" | "alloc_event" | "free_requested_event" | "free_event"
>;

export const STATES = ["not yet allocated", "allocated", "waiting for a stream", "freed"] as const;
export const NOT_YET = 0;
export const ALLOCATED = 1;
export const PENDING = 2;
export const FREED = 3;

/** Return the state of a block at an entry: an index in `STATES`. */
export function stateAt(lives: Lives, block: number, entry: number): number {
  if (lives.alloc_event[block]! >= entry) return NOT_YET;
  if (lives.free_requested_event[block]! >= entry) return ALLOCATED;
  return lives.free_event[block]! >= entry ? PENDING : FREED;
}

/** Return the blocks that are active at an entry: allocated, or waiting for a stream. */
export function activeAt(lives: Lives, entry: number): Uint32Array {
  return blocksWith(
    lives, (block) => lives.alloc_event[block]! < entry && lives.free_event[block]! >= entry);
}

/**
 * Return the blocks that were allocated between two entries and still were at the second one.
 *
 * The events first, …, last - 1 are between the entries `first` and `last`.
 */
export function unreleased(lives: Lives, first: number, last: number): Uint32Array {
  return blocksWith(lives, (block) => isUnreleased(lives, block, first, last));
}

/** Return whether `unreleased` has a block. */
export function isUnreleased(lives: Lives, block: number, first: number, last: number): boolean {
  const alloc = lives.alloc_event[block]!;
  return alloc >= first && alloc < last && lives.free_requested_event[block]! >= last;
}

function blocksWith(lives: Lives, fits: (block: number) => boolean): Uint32Array {
  const found = new Uint32Array(lives.count);
  let count = 0;
  for (let block = 0; block < lives.count; block++) if (fits(block)) found[count++] = block;
  return found.slice(0, count);
}

/** Return the bytes of each block × its part of the entries between two, in which it is active. */
export function meanBytes(lives: Lives, [first, last]: readonly [number, number]): Float64Array {
  return lives.size_bytes.map((bytes, block) => {
    const end = Math.min(lives.free_event[block]!, last);
    const entries = Math.max(0, end - Math.max(lives.alloc_event[block]!, first - 1));
    return (bytes * entries) / (last - first + 1);
  });
}

/** How many steps a block lived; `isAtLeast` if it is older or younger than the recording shows. */
export interface Life {
  steps: number;
  isAtLeast: boolean;
}

/**
 * Return how many steps a block lived; null if the recording has no steps.
 *
 * 0: the block was allocated and freed in the same step. A block that the recording's first step
 * already had, or that still exists at its end, lived at least as long as the recording shows.
 */
export function lifeInSteps(lives: Lives, block: number, steps: Steps, events: number): Life | null {
  if (steps.length === 0) return null;
  const alloc = stepIndexAt(steps, lives.alloc_event[block]!);
  const free = lives.free_requested_event[block]!;
  const end = stepIndexAt(steps, Math.min(free, events - 1));
  const isAtLeast = alloc < 0 || free >= events;
  if (end < 0) return { steps: 0, isAtLeast };
  const passed = steps[end]![0] - steps[Math.max(alloc, 0)]![0];
  return { steps: Math.max(passed, 0), isAtLeast };
}
