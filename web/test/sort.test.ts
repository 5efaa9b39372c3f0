import assert from "node:assert/strict";
import { test } from "node:test";

import { ranks, sortRows, type SortKey } from "../src/sort.ts";
import { random } from "./example.ts";

const upTo = (count: number): Uint32Array => Uint32Array.from({ length: count }, (_, i) => i);

/** The order that `Array.sort` gives: stable, unknown values last. */
function expected(rows: Uint32Array, keys: SortKey[]): number[] {
  return [...rows].sort((a, b) => {
    for (const { value, descending } of keys) {
      const [x, y] = [value(a), value(b)];
      if (Number.isNaN(x) && Number.isNaN(y)) continue;
      if (Number.isNaN(x)) return 1;
      if (Number.isNaN(y)) return -1;
      if (x !== y) return (x < y ? -1 : 1) * (descending ? -1 : 1);
    }
    return 0;
  });
}

test("rows are sorted by several columns, up and down, as a comparison sorts them", () => {
  const next = random(1);
  const count = 3000;
  const columns = [
    Float64Array.from({ length: count }, () => Math.floor(next() * 5) - 2),
    Float64Array.from({ length: count }, () => (next() < 0.2 ? NaN : next() * 2 ** 53 - 2 ** 52)),
    Float64Array.from({ length: count }, () => [0, -0, -1e300, 1e300, Infinity, -Infinity, 1e-9][
      Math.floor(next() * 7)]!),
  ];
  const rows = upTo(count).filter((row) => row % 3 !== 0);
  for (let round = 0; round < 24; round++) {
    const keys = columns
      .filter(() => next() < 0.7)
      .map((column) => ({ value: (row: number) => column[row]!, descending: next() < 0.5 }));
    assert.deepEqual([...sortRows(rows, keys)], expected(rows, keys));
  }
});

test("sorting leaves the given rows as they were", () => {
  const rows = upTo(50);
  sortRows(rows, [{ value: (row) => -row, descending: false }]);
  assert.deepEqual(rows, upTo(50));
  assert.deepEqual([...sortRows(new Uint32Array(0), [{ value: () => 1, descending: true }])], []);
});

test("texts are ranked alphabetically; an empty text is unknown", () => {
  assert.deepEqual([...ranks(["b", "a", "", "b", "B"])], [3, 2, NaN, 3, 1]);
});
