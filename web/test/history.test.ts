/** Usage, layouts and holes of random traces, against a model that follows one event at a time. */

import assert from "node:assert/strict";
import test from "node:test";
import { freeMemory } from "../src/holes.ts";
import { layoutsOf } from "../src/layout.ts";
import type { FileData } from "../src/model.ts";
import { usageOf } from "../src/usage.ts";
import { exampleFile, type Program, random } from "./example.ts";

/** The state of a device: segments as [begin, end, is expandable], and live blocks. */
class Naive {
  pages: [number, number, boolean][] = [];
  allocated = new Set<number>();
  active = new Set<number>();

  apply(file: FileData, event: number): void {
    const { events, others } = file.devices[0]!;
    const row = events.row[event]!;
    const begin = others.address[row] ?? 0;
    const end = begin + (others.size_bytes[row] ?? 0);
    switch (file.actions[events.action[event]!]) {
      case "alloc":
        this.allocated.add(row);
        this.active.add(row);
        break;
      case "free_requested":
        this.allocated.delete(row);
        break;
      case "free_completed":
        this.active.delete(row);
        break;
      case "segment_alloc":
        this.pages.push([begin, end, false]);
        break;
      case "segment_map":
        this.pages.push([begin, end, true]);
        break;
      case "segment_free":
      case "segment_unmap":
        this.pages = this.pages.flatMap(([from, to, expands]) => {
          if (end <= from || begin >= to) return [[from, to, expands]];
          const left: [number, number, boolean] = [from, begin, expands];
          const right: [number, number, boolean] = [end, to, expands];
          return [left, right].filter(([a, b]) => a < b);
        });
        break;
    }
  }

  /** The segments by address; adjacent parts of expandable segments are one. */
  segments(): [number, number][] {
    const found: [number, number, boolean][] = [];
    for (const [begin, end, expands] of this.pages.sort((a, b) => a[0] - b[0])) {
      const last = found.at(-1);
      if (last && expands && last[2] && last[1] === begin) last[1] = end;
      else found.push([begin, end, expands]);
    }
    return found.map(([begin, end]) => [begin, end]);
  }
}

/** The same file without its first events: what is known of them is the state before the rest. */
function cut(file: FileData, first: number): FileData {
  const device = file.devices[0]!;
  const naive = new Naive();
  for (let event = 0; event < first; event++) naive.apply(file, event);
  const { events, blocks } = device;
  const kept = [...Array(blocks.count).keys()].filter((i) => blocks.free_event[i]! >= first);
  const row = new Map(kept.map((block, i) => [block, i]));
  const shift = (column: Int32Array): Int32Array =>
    Int32Array.from(kept, (i) => Math.max(-1, column[i]! - first));
  const pick = <T extends { constructor: unknown }>(column: T): T => {
    const type = column.constructor as { from(values: number[]): T };
    return type.from(kept.map((i) => (column as unknown as number[])[i]!));
  };
  const slice = Object.entries(events).map(([name, column]) => [
    name,
    typeof column === "number" ? column - first : column.slice(first),
  ]);
  const picked = Object.entries(blocks).map(([name, column]) => [
    name,
    typeof column === "number" ? kept.length : pick(column),
  ]);
  const cutEvents = Object.fromEntries(slice) as typeof events;
  cutEvents.row = cutEvents.row.map((at, i) => (cutEvents.action[i]! < 3 ? row.get(at)! : at));
  const segments = naive.segments();
  const expands = naive.pages.length > 0 && naive.pages[0]![2];
  const column = (values: number[]): Float64Array => Float64Array.from(values);
  return {
    ...file,
    devices: [
      {
        ...device,
        first_event: first,
        events: cutEvents,
        blocks: {
          ...(Object.fromEntries(picked) as typeof blocks),
          alloc_event: shift(blocks.alloc_event),
          free_requested_event: shift(blocks.free_requested_event),
          free_event: shift(blocks.free_event),
        },
        segments: {
          count: segments.length,
          address: column(segments.map(([begin]) => begin)),
          size_bytes: column(segments.map(([begin, end]) => end - begin)),
          stream: new Float64Array(segments.length),
          pool: new Uint32Array(segments.length),
          is_small: new Uint8Array(segments.length),
          is_expandable: new Uint8Array(segments.length).fill(Number(expands)),
        },
      },
    ],
  };
}

for (const program of ["random", "expandable", "fragmentation"] as Program[]) {
  for (const seed of [1, 2, 3]) {
    const complete = exampleFile(program, 4000, seed);
    for (const first of [0, 1517]) {
      test(`usage and layouts of ${program}, seed ${seed}, from event ${first}`, () => {
        const file = cut(complete, first);
        const device = file.devices[0]!;
        const usage = usageOf(file, device);
        const layouts = layoutsOf(file, device);
        const { address, size_bytes } = complete.devices[0]!.blocks;
        const naive = new Naive();
        for (let event = 0; event < first; event++) naive.apply(complete, event);
        const sum = (set: Set<number>): number =>
          [...set].reduce((total, block) => total + size_bytes[block]!, 0);
        for (let entry = 0; entry <= device.events.count; entry++) {
          if (entry > 0) naive.apply(complete, first + entry - 1);
          if (entry % 7 && entry > 50) continue;
          const segments = naive.segments();
          const reserved = segments.reduce((total, [begin, end]) => total + end - begin, 0);
          assert.equal(usage.allocated[entry], sum(naive.allocated));
          assert.equal(usage.active[entry], sum(naive.active));
          assert.equal(usage.reserved[entry], reserved);
          const layout = layouts.at(entry);
          assert.deepEqual(
            layout.segments.map((segment) => [segment.address, segment.address + segment.size_bytes]),
            segments,
          );
          assert.deepEqual(
            [...layout.blocks].map((block) => device.blocks.address[block]!),
            [...naive.active].map((block) => address[block]!).sort((a, b) => a - b),
          );
          const free = freeMemory(layout, device.blocks);
          assert.equal(free.free_bytes, reserved - sum(naive.active));
        }
      });
    }
  }
}

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
