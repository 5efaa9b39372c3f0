/**
 * Layouts and holes. tests/page/test_views.py compares usage and layouts of random traces with
 * pytracer's analysis.
 */

import assert from "node:assert/strict";
import test from "node:test";
import { freeMemory } from "../src/holes.ts";
import { layoutsOf } from "../src/layout.ts";
import { exampleFile, random } from "./example.ts";

test("pages that are mapped and unmapped in any order join and part", () => {
  const page = 20 * 2 ** 20;
  const next = random(11);
  const file = exampleFile("training", 10);
  const [map, unmap] = ["segment_map", "segment_unmap"].map((name) => file.actions.indexOf(name));
  // Random pages of one address range change between mapped and unmapped.
  const isMapped = new Array<boolean>(12).fill(false);
  const expected: string[] = [isMapped.join()];
  const chosen = Array.from({ length: 400 }, () => Math.floor(next() * isMapped.length));
  const action = Uint8Array.from(chosen, (at) => {
    isMapped[at] = !isMapped[at];
    expected.push(isMapped.join());
    return isMapped[at] ? map! : unmap!;
  });
  const count = chosen.length;
  const device = {
    ...file.devices[0]!,
    events: { count, action, row: Uint32Array.from(chosen, (_, i) => i) },
    others: {
      count,
      address: Float64Array.from(chosen, (at) => at * page),
      size_bytes: new Float64Array(count).fill(page),
      stream: new Float64Array(count),
      pool: new Uint32Array(count),
      is_small: new Uint8Array(count),
    },
    blocks: { count: 0, address: new Float64Array(0) },
  };
  const layouts = layoutsOf(file, device as never);
  for (const [entry, pages] of expected.entries()) {
    const { segments } = layouts.at(entry);
    const found = isMapped.map((_, at) =>
      segments.some((one) => one.address <= at * page && at * page < one.address + one.size_bytes),
    );
    assert.equal(found.join(), pages);
    for (const [i, segment] of segments.entries()) {
      const after = segments[i + 1];
      if (after) assert.ok(segment.address + segment.size_bytes < after.address);
    }
  }
});

test("layouts do not depend on the order of the questions", () => {
  const file = exampleFile("expandable", 6000);
  const device = file.devices[0]!;
  const next = random(5);
  const one = layoutsOf(file, device);
  for (let i = 0; i < 200; i++) {
    const entry = Math.floor(next() * (device.events.count + 1));
    const fresh = layoutsOf(file, device).at(entry);
    assert.deepEqual(one.at(entry), fresh);
  }
});

test("a layout that a view holds does not change when another entry is asked for", () => {
  const file = exampleFile("expandable", 6000);
  const layouts = layoutsOf(file, file.devices[0]!);
  const held = layouts.at(10);
  const copy = structuredClone(held);
  for (let entry = 11; entry < 3000; entry += 13) layouts.at(entry);
  assert.deepEqual(held, copy);
});

test("what blocks pin follows from segments, and from pages of expandable segments", () => {
  const mib = 2 ** 20;
  const segment = { stream: 0, pool: 0, is_small: false };
  const blocks = {
    address: Float64Array.of(0, 65 * mib, 1000 * mib),
    size_bytes: Float64Array.of(mib, mib, 2 * mib),
  };
  const layout = {
    entry: 0,
    segments: [
      { ...segment, address: 0, size_bytes: 90 * mib, is_expandable: true },
      { ...segment, address: 1000 * mib, size_bytes: 20 * mib, is_expandable: false },
      { ...segment, address: 2000 * mib, size_bytes: 20 * mib, is_expandable: false },
    ],
    blocks: Uint32Array.of(0, 1, 2),
  };
  assert.deepEqual(freeMemory(layout, blocks as never), {
    free_bytes: (88 + 18 + 20) * mib,
    // Pages of 20 MiB: the first one has 19 MiB pinned, the fourth one 19; the fifth one is free.
    pinned_bytes: (19 + 19 + 18) * mib,
    holes: 4,
    largest_bytes: 64 * mib,
  });
});
