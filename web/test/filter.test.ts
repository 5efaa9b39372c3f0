import assert from "node:assert/strict";
import { test } from "node:test";

import { addressRanges, parseFilter, valueOf, withValue } from "../src/filter_terms.ts";
import { filterRows, type FilterSource } from "../src/row_filter.ts";
import { stackSearch } from "../src/search.ts";

const BASE = 0x7f0000000000n;

// Stack 1: train.py:3 → model.py:10. Stack 2: data.py:7. Stack 3: C++, of the forward stack 1.
const stacks = {
  count: 4,
  offsets: Uint32Array.of(0, 0, 2, 3, 4),
  frame: Uint32Array.of(1, 0, 2, 3),
  forward: Uint32Array.of(0, 0, 0, 1),
  site: Uint32Array.of(0, 1, 2, 3),
};
const sites = ["(not known)", "model.py:10 forward", "data.py:7 load", "backward of Forward (Mul)"];
const stacksWith = stackSearch(
  { stacks, sites } as never, ["train.py:3 main", "model.py:10 forward", "data.py:7 load", "at::empty"]);

const addresses = [0, 512, 1024, 0x1000, NaN];
const source: FilterSource = {
  count: 5,
  addressBase: BASE,
  address: (row) => addresses[row]!,
  sizeBytes: (row) => [512, 512, 2048, 2 ** 20, 0][row]!,
  stack: (row) => [1, 2, 3, 1, 0][row]!,
  stacksWith,
  columns: {
    category: () => ({ texts: ["unknown", "gradient"], index: (row) => row % 2 }),
    phase: () => ({ texts: ["", "forward pass"], index: (row) => (row === 2 ? 1 : 0) }),
  },
  searched: [{ texts: ["", "layers.0.weight"], index: (row) => (row === 4 ? 1 : 0) }],
};

function rowsOf(filter: string): number[] {
  const { terms, error } = parseFilter(filter);
  assert.equal(error, "");
  return [...filterRows(source, terms).rows];
}

test("an empty filter keeps all rows", () => {
  assert.deepEqual(rowsOf("  "), [0, 1, 2, 3, 4]);
});

test("a word is found in frames, in forward stacks, in call sites and in other columns", () => {
  assert.deepEqual(rowsOf("MODEL.py:10"), [0, 2, 3]); // stack 3 only through its forward stack
  assert.deepEqual(rowsOf("data.py"), [1]);
  assert.deepEqual(rowsOf("backward"), [2]);
  assert.deepEqual(rowsOf("layers.0"), [4]);
  assert.deepEqual(rowsOf("known"), [4]); // "(not known)", and no stack through forward stack 0
  assert.deepEqual(rowsOf("train.py absent"), []);
  assert.deepEqual(rowsOf('"forward" train'), [0, 2, 3]);
});

test("an address finds what begins with its digits and the block that contains it", () => {
  assert.deepEqual(rowsOf("0x7f0000000200"), [1]);
  assert.deepEqual(rowsOf("0x7f00000002ff"), [1]); // inside of block 1
  assert.deepEqual(rowsOf("0x7f0000000"), [0, 1, 2]);
  assert.deepEqual(rowsOf("0x7f00000010"), [3]);
  assert.deepEqual(rowsOf("0x7E"), []);
  assert.deepEqual(rowsOf("0xffffffffffffffffffff"), []);
});

test("sizes and values of columns filter, and several terms must all match", () => {
  assert.deepEqual(rowsOf("size>512"), [2, 3]);
  assert.deepEqual(rowsOf("size>=512B size<1MiB"), [0, 1, 2]);
  assert.deepEqual(rowsOf("size<=2K"), [0, 1, 2, 4]);
  assert.deepEqual(rowsOf("category:Gradient"), [1, 3]);
  assert.deepEqual(rowsOf('phase:"forward pass"'), [2]);
  assert.deepEqual(rowsOf("category:gradient size>=1MiB"), [3]);
});

test("a size that cannot be read is an error with the text", () => {
  assert.match(parseFilter("size>large").error, /"size>large" is not a size condition/);
});

test("a key that the table does not have is reported and filters nothing", () => {
  const found = filterRows(source, parseFilter("action:alloc data.py").terms);
  assert.deepEqual(found.unknownKeys, ["action"]);
  assert.deepEqual([...found.rows], [1]);
});

test("a path with a colon is a word", () => {
  assert.deepEqual(parseFilter("c:\\train.py").terms, [{ kind: "word", text: "c:\\train.py" }]);
  assert.deepEqual(parseFilter("train.py:3").terms, [{ kind: "word", text: "train.py:3" }]);
});

test("a menu replaces the term of its key and keeps the others", () => {
  const filter = withValue("model.py phase:old", "phase", "forward pass");
  assert.equal(filter, 'model.py phase:"forward pass"');
  assert.equal(valueOf(filter, "phase"), "forward pass");
  assert.equal(withValue(filter, "phase", ""), "model.py");
  const quoted = withValue("", "phase", 'a"b <img onerror=1>');
  assert.equal(valueOf(quoted, "phase"), "ab <img onerror=1>");
});

test("ranges of addresses are exact", () => {
  assert.deepEqual(addressRanges("7f0000000001", BASE)[0], [1, 1]);
  assert.deepEqual(addressRanges("7f", 0x7fn)[0], [0, 0]);
  assert.deepEqual(addressRanges("0", 0n), [[0, 0]]);
});
