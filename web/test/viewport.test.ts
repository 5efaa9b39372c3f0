import assert from "node:assert/strict";
import { test } from "node:test";

import { listHeight, scrollToRow, visibleRows } from "../src/viewport.ts";

test("a short list scrolls pixel by pixel", () => {
  const view = { count: 100, rowHeight: 20, height: 100 };
  assert.equal(listHeight(view), 2000);
  assert.deepEqual(visibleRows(view, 50), { first: 2, last: 8, top: 40 });
  assert.equal(scrollToRow(view, 50, 3), 50); // in view already
  assert.equal(scrollToRow(view, 50, 0), 0);
  assert.equal(scrollToRow(view, 50, 99), 1900);
});

test("a list that fits does not scroll", () => {
  const view = { count: 3, rowHeight: 20, height: 100 };
  assert.deepEqual(visibleRows(view, 0), { first: 0, last: 3, top: 0 });
  assert.deepEqual(visibleRows({ ...view, count: 0 }, 0), { first: 0, last: 0, top: 0 });
});

test("every row of a list of ten millions can be in view, below the height that browsers draw", () => {
  const view = { count: 10_000_000, rowHeight: 24, height: 480 };
  assert.ok(listHeight(view) <= 17_000_000);
  let scrollTop = 0;
  for (const row of [0, 1, 4_999_999, 5_000_000, 9_999_998, 9_999_999, 17]) {
    scrollTop = scrollToRow(view, scrollTop, row);
    const { first, last, top } = visibleRows(view, scrollTop);
    assert.ok(first <= row && row < last, `row ${row} is not in ${first} to ${last}`);
    const pixel = top + (row - first) * 24 - scrollTop;
    assert.ok(pixel > -1 && pixel < 480 - 23, `row ${row} is at pixel ${pixel}`);
  }
});
