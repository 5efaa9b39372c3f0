import assert from "node:assert/strict";
import { test } from "node:test";

import {
  CUT, NO_STACK, flameBoxes, flameTree, matchedBytes, pathsOf, type FlameNode,
} from "../src/flame_tree.ts";
import { random } from "./example.ts";

const next = random(5);
const STACKS = 200;
const offsets = new Uint32Array(STACKS + 1);
const frames: number[] = [];
for (let stack = 1; stack < STACKS; stack++) {
  offsets[stack] = frames.length;
  const depth = 1 + Math.floor(next() * 8);
  for (let i = 0; i < depth; i++) frames.push(Math.floor(next() ** 2 * 12));
}
offsets[STACKS] = frames.length;
const stacks = { offsets, frame: Uint32Array.from(frames) };
const file = { stacks, frames: { is_program: Uint8Array.of(1, 0, 1, 0) }, stack_depth: 0 };
const COUNT = 5000;
const sizeBytes = Float64Array.from({ length: COUNT }, () => 512 * (1 + Math.floor(next() * 4000)));
const stackOf = Uint32Array.from({ length: COUNT }, () => Math.floor(next() * STACKS));
const columns = { size_bytes: sizeBytes, requested_bytes: sizeBytes, stack: stackOf };
const blocks = Uint32Array.from({ length: COUNT }, (_, i) => i).filter((i) => i % 3 > 0);
const total = blocks.reduce((sum, block) => sum + sizeBytes[block]!, 0);
const tree = flameTree(
  blocks, columns, Uint8Array.from({ length: COUNT }, (_, i) => i % 5),
  pathsOf(file as never, { hasLibraries: true, isInverted: false }));

/** The bytes of all blocks whose stack begins, outermost first, with the node's frames. */
function expectedBytes(node: FlameNode): number {
  const path: number[] = [];
  for (let at = node; at.parent; at = at.parent) path.unshift(at.frame);
  return blocks.reduce((sum, block) => {
    const stack = stackOf[block]!;
    const own = [...stacks.frame.subarray(offsets[stack]!, offsets[stack + 1]!)].reverse();
    if (own.length === 0) own.push(NO_STACK);
    return path.every((frame, i) => own[i] === frame) ? sum + sizeBytes[block]! : sum;
  }, 0);
}

test("the root has the bytes of all blocks, and each node those of its stacks", () => {
  assert.equal(tree.bytes, total);
  assert.equal(tree.count, blocks.length);
  let seen = 0;
  const visit = (node: FlameNode): void => {
    if (seen++ % 17 === 0) assert.equal(node.bytes, expectedBytes(node));
    const inside = node.children.reduce((sum, child) => sum + child.bytes, 0);
    assert.ok(inside <= node.bytes);
    for (const [i, child] of node.children.entries()) {
      assert.equal(child.parent, node);
      if (i > 0) assert.ok(child.bytes <= node.children[i - 1]!.bytes);
      visit(child);
    }
  };
  visit(tree);
  assert.ok(seen > 200);
  assert.equal(tree.children.reduce((sum, child) => sum + child.bytes, 0), total);
});

test("blocks without a call stack are a child of the root", () => {
  const child = tree.children.find((node) => node.frame === NO_STACK)!;
  assert.equal(child.bytes, expectedBytes(child));
});

test("boxes are as wide as their bytes and lie within their callers", () => {
  const boxes = flameBoxes(tree, 0.01, 50);
  for (const box of boxes) {
    assert.ok(Math.abs(box.width - box.node.bytes / total) < 1e-9);
    const caller = boxes.find((other) => other.node === box.node.parent);
    if (!caller) continue;
    assert.ok(box.left >= caller.left - 1e-9);
    assert.ok(box.left + box.width <= caller.left + caller.width + 1e-9);
    assert.equal(box.row, caller.row + 1);
    const before = boxes.filter(({ row, left }) => row === box.row && left < box.left);
    assert.ok(before.every(({ left, width }) => left + width <= box.left + 1e-9));
  }
  assert.equal(new Set(boxes.map(({ row, left }) => `${row} ${left}`)).size, boxes.length);
  assert.ok(boxes.every((box) => box.width >= 0.01));
  assert.ok(boxes.length > 10 && boxes.length < flameBoxes(tree, 0.0001, 50).length);
});

test("a node that is zoomed to has the full width, and so have its callers", () => {
  const top = tree.children[0]!.children[0]!;
  const boxes = flameBoxes(top, 0.01, 50);
  assert.deepEqual(boxes.slice(0, 3).map(({ node }) => node), [tree, top.parent, top]);
  assert.ok(boxes.slice(0, 3).every(({ left, width }) => left === 0 && width === 1));
});

test("rows have a bound", () => {
  assert.ok(flameBoxes(tree, 0, 2).every((box) => box.row <= 2));
});

test("the bytes of a search count a block once, also with recursion", () => {
  const wanted = 1;
  const expected = blocks.reduce((sum, block) => {
    const stack = stackOf[block]!;
    const own = stacks.frame.subarray(offsets[stack]!, offsets[stack + 1]!);
    return own.includes(wanted) ? sum + sizeBytes[block]! : sum;
  }, 0);
  assert.equal(matchedBytes(tree, ({ frame }) => frame === wanted), expected);
});

test("a path has the program's frames, and says that a stack was cut", () => {
  const of = (frame: number[], stack_depth: number, hasLibraries: boolean, isInverted: boolean) => {
    const one = { offsets: Uint32Array.of(0, 0, frame.length), frame: Uint32Array.from(frame) };
    const paths = pathsOf({ ...file, stacks: one, stack_depth } as never, { hasLibraries, isInverted });
    return [paths(0), paths(1)];
  };
  assert.deepEqual(of([0, 1, 2, 3], 0, true, false), [[NO_STACK], [3, 2, 1, 0]]);
  assert.deepEqual(of([0, 1, 2, 3], 0, false, false), [[NO_STACK], [2, 0]]);
  assert.deepEqual(of([0, 1, 2, 3], 4, false, false), [[NO_STACK], [CUT, 2, 0]]);
  assert.deepEqual(of([0, 1, 2, 3], 5, false, true), [[NO_STACK], [0, 2]]);
  assert.deepEqual(of([0, 1, 2, 3], 4, true, true), [[NO_STACK], [0, 1, 2, 3, CUT]]);
  // A stack without a frame of the program keeps all of them
  assert.deepEqual(of([3, 1], 0, false, false), [[NO_STACK], [1, 3]]);
});
