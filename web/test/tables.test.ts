import assert from "node:assert/strict";
import { test } from "node:test";

import { blockColumns, blockSource } from "../src/block_columns.ts";
import { sortedRows } from "../src/difference.ts";
import { eventRows, eventSource } from "../src/events_table.ts";
import { parseFilter } from "../src/filter_terms.ts";
import { flameTree, pathsOf } from "../src/flame_tree.ts";
import { framePlace } from "../src/frame_place.ts";
import { layoutsOf } from "../src/layout.ts";
import { activeAt } from "../src/lives.ts";
import type { Model } from "../src/model.ts";
import { filterRows } from "../src/row_filter.ts";
import { START, type State } from "../src/selection.ts";
import { address, frameText } from "../src/text.ts";
import { usageOf } from "../src/usage.ts";
import { exampleFile } from "./example.ts";

const file = exampleFile("random", 4000, 3);
const device = file.devices[0]!;
const model: Model = {
  page: {} as never, file, device,
  usage: usageOf(file, device), layouts: layoutsOf(file, device),
};
const { blocks, events } = device;

const blocksWith = (filter: string, state: Partial<State> = {}): number[] => [
  ...filterRows(blockSource(model, { ...START, ...state, filter }), parseFilter(filter).terms).rows,
];
const numbers = (count: number): number[] => Array.from({ length: count }, (_, i) => i);

test("blocks by state are those that the events have allocated and not yet freed", () => {
  for (const entry of [0, 700, 2001, events.count]) {
    const [allocated, active] = [new Set<number>(), new Set<number>()];
    for (let block = 0; block < blocks.count && blocks.alloc_event[block]! < 0; block++) {
      allocated.add(block);
      active.add(block);
    }
    for (let event = 0; event < entry; event++) {
      const [name, row] = [file.actions[events.action[event]!]!, events.row[event]!];
      if (name === "alloc") allocated.add(row) && active.add(row);
      if (name === "free_requested") allocated.delete(row);
      if (name === "free_completed") active.delete(row);
    }
    const sorted = (rows: Set<number>): number[] => [...rows].sort((a, b) => a - b);
    assert.deepEqual(blocksWith("state:allocated", { entry }), sorted(allocated));
    const pending = new Set([...active].filter((row) => !allocated.has(row)));
    assert.deepEqual(blocksWith("state:pending", { entry }), sorted(pending));
  }
});

test("the range filters the blocks that it allocated and did not release", () => {
  const range: [number, number] = [500, 1500];
  const expected = blocksWith("state:allocated", { entry: 1500 })
    .filter((block) => blocks.alloc_event[block]! >= 500);
  assert.ok(expected.length > 10);
  assert.deepEqual(blocksWith("state:unreleased", { range }), expected);
  assert.deepEqual(blocksWith("state:unreleased", { range: null }), []);
});

test("a search finds the blocks and events whose stack has the text", () => {
  const { offsets, frame, forward } = file.stacks;
  const text = (stack: number): string =>
    [...frame.subarray(offsets[stack]!, offsets[stack + 1]!)].map((one) => frameText(file, one)).join();
  const has = (stack: number): boolean =>
    (text(stack) + (forward[stack] ? text(forward[stack]!) : "")).includes("model.py");
  const found = blocksWith("model.py");
  assert.ok(found.length > 50 && found.length < blocks.count);
  assert.deepEqual(found, numbers(blocks.count).filter((block) => has(blocks.stack[block]!)));
  const source = eventSource(model, eventRows(model));
  const { rows } = filterRows(source, parseFilter("MODEL.py action:alloc").terms);
  assert.deepEqual([...rows], numbers(events.count).filter((event) =>
    has(events.stack[event]!) && file.actions[events.action[event]!] === "alloc"));
});

test("the address that the table shows finds its block, and the events of the block", () => {
  const block = 40;
  const text = address(device, blocks.address[block]!);
  const found = blocksWith(text);
  assert.ok(found.includes(block));
  for (const row of found) {
    assert.ok(blocks.address[row]! <= blocks.address[block]!);
    assert.ok(blocks.address[row]! + blocks.size_bytes[row]! > blocks.address[block]!);
  }
  const source = eventSource(model, eventRows(model));
  const rows = new Set(filterRows(source, parseFilter(text).terms).rows);
  assert.ok(rows.has(blocks.alloc_event[block]!) && rows.has(blocks.free_requested_event[block]!));
});

test("an out-of-memory has the requested bytes, and no address", () => {
  const failed = exampleFile("fragmentation", 3000);
  const at = failed.devices[0]!;
  const rows = eventRows({ ...model, file: failed, device: at });
  const event = at.events.action.indexOf(failed.actions.indexOf("oom"));
  assert.equal(rows.sizeBytes(event), 600 * 2 ** 20);
  assert.ok(Number.isNaN(rows.address(event)));
  assert.equal(rows.block(event), null);
});

test("the values to sort by follow the texts", () => {
  const columns = blockColumns(model, () => 1000);
  for (const id of ["category", "site", "state", "owner"]) {
    const column = columns.find((one) => one.id === id)!;
    const texts = new Map<number, string>();
    for (let block = 0; block < blocks.count; block++) {
      const [value, text] = [column.value(block), column.text(block)];
      if (Number.isNaN(value)) assert.equal(text, "");
      else assert.equal(texts.get(value) ?? text, text);
      texts.set(value, text);
    }
  }
});

test("the flame graph of any moment has the active bytes of this moment", () => {
  for (let entry = 0; entry <= events.count; entry += 97) {
    const groups = new Uint8Array(blocks.count);
    const paths = pathsOf(file, { hasLibraries: true, isInverted: false });
    const tree = flameTree(activeAt(blocks, entry), blocks, groups, paths);
    assert.equal(tree.bytes, model.usage.active[entry]);
    const below = tree.children.reduce((sum, child) => sum + child.bytes, 0);
    assert.equal(below, tree.bytes);
  }
});

test("the place of a frame has the last folder, the file and the line", () => {
  const strings = ["", "f", "/a/models/llama.py", "train.py", "??"];
  const frames = {
    count: 4, name: Uint32Array.of(1, 1, 1, 1),
    filename: Uint32Array.of(2, 3, 4, 0), line: Uint32Array.of(12, 0, 0, 0),
    is_program: new Uint8Array(4),
  };
  const places = [0, 1, 2, 3].map((frame) => framePlace({ ...file, strings, frames }, frame));
  assert.deepEqual(places, ["models/llama.py:12", "train.py", "", ""]);
});

test("differences are ordered by the size of the change", () => {
  const row = (before_bytes: number, after_bytes: number) => ({ name: "s", before_bytes, after_bytes, share: "" });
  const rows = [row(5, 6), row(100, 0), row(0, 50), row(7, 7)];
  const changes = sortedRows(rows).map((one) => one.after_bytes - one.before_bytes);
  assert.deepEqual(changes, [-100, 50, 1, 0]);
});
