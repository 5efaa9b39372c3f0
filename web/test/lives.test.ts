import assert from "node:assert/strict";
import { test } from "node:test";

import {
  ALLOCATED, FREED, NOT_YET, PENDING, lifeInSteps, stateAt, unreleased,
  type Lives,
} from "../src/lives.ts";
import { stepIndexAt } from "../src/model.ts";

// Twelve events. -1: before the first event, 12: after the last one.
const lives: Lives = {
  count: 5,
  size_bytes: Float64Array.of(100, 20, 3, 20, 500),
  alloc_event: Int32Array.of(-1, 0, 3, 5, 5),
  free_requested_event: Int32Array.of(4, 6, 12, 7, 6),
  free_event: Int32Array.of(9, 6, 12, 12, 7),
};
const EVENTS = 12;
const STEPS = [[10, 2], [11, 4], [20, 6]] as const;

test("the state of a block follows its events", () => {
  const states = (block: number): number[] =>
    Array.from({ length: EVENTS + 1 }, (_, entry) => stateAt(lives, block, entry));
  assert.deepEqual(states(0), [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3]);
  assert.deepEqual(states(1), [0, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3]);
  assert.deepEqual(states(2), [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
  assert.deepEqual([NOT_YET, ALLOCATED, PENDING, FREED], [0, 1, 2, 3]);
});

test("a range finds what was allocated in it and is allocated at its end", () => {
  assert.deepEqual([...unreleased(lives, 0, 6)], [1, 2, 3, 4]);
  assert.deepEqual([...unreleased(lives, 1, 6)], [2, 3, 4]); // event 0 is before entry 1
  assert.deepEqual([...unreleased(lives, 0, 7)], [2, 3]); // 1 and 4 are freed by event 6
  assert.deepEqual([...unreleased(lives, 6, 12)], []);
  assert.deepEqual([...unreleased(lives, 5, 5)], []);
});

test("the step of an event is the last one that began before", () => {
  const found = [-1, 1, 2, 3, 4, 5, 6, 11].map((event) => stepIndexAt(STEPS, event));
  assert.deepEqual(found, [-1, -1, 0, 0, 1, 1, 2, 2]);
});

test("a life in steps counts by the numbers of the steps, and has bounds where they are unknown", () => {
  const life = (block: number): unknown => lifeInSteps(lives, block, STEPS, EVENTS);
  assert.deepEqual(life(0), { steps: 1, isAtLeast: true }); // older than the recording
  assert.deepEqual(life(1), { steps: 10, isAtLeast: true }); // before the first known step
  assert.deepEqual(life(2), { steps: 10, isAtLeast: true }); // still exists at the end
  assert.deepEqual(life(3), { steps: 9, isAtLeast: false });
  assert.deepEqual(lifeInSteps(lives, 3, [[1, 0]], EVENTS), { steps: 0, isAtLeast: false });
  assert.equal(lifeInSteps(lives, 3, [], EVENTS), null);
});
