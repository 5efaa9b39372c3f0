/** The selection, the zoom, the areas of the timeline, and the rows of the map. */

import assert from "node:assert/strict";
import test from "node:test";
import { areasOf, columnsOf, groupsAt, hitAt } from "../src/areas.ts";
import {
  AXES, axisOf, type Axis, moved, shown, timeAxis, zoomed,
} from "../src/axis.ts";
import type { Groups } from "../src/colours.ts";
import { groupsOf, MOST_GROUPS } from "../src/colours.ts";
import { layoutsOf } from "../src/layout.ts";
import { addressAt, mapRows, pieceAt, pieceOf, ROW } from "../src/map_rows.ts";
import { COLOURS, fromHash, Selection, START, type State, TABS, toHash } from "../src/selection.ts";
import { size } from "../src/text.ts";
import { usageOf } from "../src/usage.ts";
import { exampleFile, random } from "./example.ts";

test("an address keeps the selection", () => {
  const next = random(3);
  const whole = (): number => Math.floor(next() * 1e6);
  for (let i = 0; i < 300; i++) {
    const [a, b] = [whole(), whole()];
    const state: State = {
      file: whole() % 4,
      device: whole() % 3,
      entry: next() < 0.2 ? -1 : whole(),
      range: next() < 0.5 ? null : [Math.min(a, b), Math.max(a, b)],
      zoom: next() < 0.5 ? null : [Math.min(a, b), Math.max(a, b)],
      bytes: next() < 0.5 ? null : [Math.min(a, b), Math.max(a, b)],
      block: next() < 0.5 ? null : whole(),
      colour: COLOURS[whole() % COLOURS.length]!,
      axis: AXES[whole() % AXES.length]!,
      filter: ["", "a&b=c#d", "+ %20 é", "size>=1MiB \"x y\""][whole() % 4]!,
      tab: TABS[whole() % TABS.length]!,
    };
    assert.deepEqual(fromHash(`#${toHash(state)}`), state);
  }
});

test("an address that no page wrote gives the start", () => {
  for (const hash of ["", "#", "#entry=-5&colour=red&tab=x&range=9-3&zoom=1", "#block=1e9&file=1.5"]) {
    assert.deepEqual(fromHash(hash), START);
  }
});

test("listeners hear of changes only, and not after their end", () => {
  const selection = new Selection();
  const heard: number[] = [];
  const end = selection.subscribe((state) => heard.push(state.entry));
  selection.update({ entry: 5 });
  selection.update({ entry: 5 });
  selection.update({ entry: 6 });
  end();
  selection.update({ entry: 7 });
  assert.deepEqual(heard, [5, 6]);
});

test("sizes are those of pytracer's size()", () => {
  // What pytracer.text.size returns for these numbers.
  const expected: [number, string][] = [
    [0, "0 B"], [1023, "1023 B"], [1024, "1 KiB"], [1536, "1.5 KiB"], [12632064, "12.05 MiB"],
    [1073741823, "1 GiB"], [1048575, "1 MiB"], [-2048, "-2 KiB"], [85899345920, "80 GiB"], [1234567, "1.177 MiB"],
  ];
  for (const [bytes, text] of expected) assert.equal(size(bytes), text);
});

const eventAxis = (entries: number): Axis =>
  axisOf({ events: { count: entries - 1 } } as never, "events");

test("zoom and pan stay in the history and keep the centre", () => {
  const next = random(4);
  for (let i = 0; i < 500; i++) {
    const entries = 10 + Math.floor(next() * 1000);
    const interval = shown([Math.floor(next() * entries), entries + 5], entries);
    const centre = interval[0] + Math.floor(next() * (interval[1] - interval[0] + 1));
    const axis = eventAxis(entries);
    const found = zoomed(axis, interval, 0.2 + 2 * next(), centre);
    if (!found) continue;
    assert.ok(found[0] >= 0 && found[1] < entries && found[0] <= found[1]);
    assert.ok(found[0] <= centre + 1 && centre <= found[1] + 1);
    const by = Math.round((next() - 0.5) * entries);
    const after = moved(axis, found, by)!;
    assert.equal(after[1] - after[0], found[1] - found[0]);
    assert.ok(after[0] >= 0 && after[1] < entries);
  }
  assert.equal(zoomed(eventAxis(100), [0, 99], 2, 50), null);
});

/** Return the times of events, of which bursts are one microsecond apart and pauses a second. */
function burstTimes(events: number, next: () => number): Float64Array {
  let time = 1e9;
  return Float64Array.from({ length: events }, () => {
    const found = next();
    time += found < 0.01 ? 1e6 : found < 0.6 ? 1 : 0;
    return time;
  });
}

test("on an axis of time, zoom and pan go on across pauses and bursts", () => {
  const next = random(8);
  const axis = timeAxis(burstTimes(2000, next));
  for (let place = 0; place <= axis.at(axis.entries); place += 12345.6) {
    assert.ok(Math.abs(axis.at(axis.entry(place)) - place) < 1e-3);
  }
  for (let i = 0; i < 200; i++) {
    const centre = Math.floor(next() * axis.entries);
    // Zooming in ends at the fewest entries around the centre, and out at the complete history.
    let interval = shown(null, axis.entries);
    for (let turn = 0; turn < 300; turn++) interval = zoomed(axis, interval, 0.9, centre) ?? interval;
    assert.equal(interval[1] - interval[0], 7);
    assert.ok(interval[0] <= centre + 4 && centre <= interval[1] + 4, `${interval} ${centre}`);
    // Moving to an end reaches it, whatever lasts longer than the distance.
    const by = next() < 0.5 ? -3 : 3;
    for (let turn = 0; turn < 3000; turn++) interval = moved(axis, interval, by) ?? interval;
    assert.ok(by < 0 ? interval[0] === 0 : interval[1] === axis.entries - 1, `${interval} ${by}`);
    let out: [number, number] | null = interval;
    for (let turn = 0; out && turn < 3000; turn++) out = zoomed(axis, out, 1.1, centre);
    assert.equal(out, null);
  }
});

test("events without a time are where the event before was", () => {
  const axis = timeAxis(Float64Array.of(-1, 100, -1, 104, 103));
  assert.deepEqual([0, 1, 2, 3, 4, 5, 6].map((entry) => axis.at(entry)), [0, 0, 0, 0, 4, 4, 4]);
});

test("areas are the bytes of each group at the entry of each column", () => {
  for (const seed of [1, 2]) {
    const file = exampleFile("random", 3000, seed);
    const device = file.devices[0]!;
    const { allocated } = usageOf(file, device);
    const groups: Groups = {
      names: ["a", "b", "c"],
      of: Uint8Array.from({ length: device.blocks.count }, (_, i) => i % 3),
      swatch: [0, 1, 2],
    };
    for (const [first, last, width] of [[0, 3000, 200], [100, 400, 77], [1000, 1040, 500]] as const) {
      for (const axis of [axisOf(device, "events"), timeAxis(burstTimes(3000, random(seed)))]) {
        const layouts = layoutsOf(file, device);
        const columns = columnsOf(allocated, axis, first, last, width);
        const areas = areasOf(device.blocks, groups, columns, 1);
        for (const [column, entry] of columns.entries.entries()) {
          assert.ok(columns.from[column]! <= entry && entry < columns.to[column]!);
          const { bytes } = groupsAt(device.blocks, groups, entry, layouts.at(entry).blocks);
          let top = 0;
          for (const [group, size_bytes] of bytes.entries()) {
            top += size_bytes;
            assert.equal(areas.tops[group]![column], top);
          }
          assert.equal(top, allocated[entry]);
        }
        assert.ok(areas.blocks.length > 0);
        for (const { block, group, from, bottom, bytes } of areas.blocks) {
          for (const [i, low] of bottom.entries()) {
            const entry = columns.entries[from + i]!;
            assert.ok(device.blocks.alloc_event[block]! < entry);
            assert.ok(entry <= device.blocks.free_requested_event[block]!);
            assert.ok(low >= (group ? areas.tops[group - 1]![from + i]! : 0));
            assert.ok(low + bytes <= areas.tops[group]![from + i]!);
            assert.equal(hitAt(areas, from + i, low + bytes / 2)!.block, block);
          }
        }
      }
    }
  }
});

test("no peak is lost between two columns", () => {
  const file = exampleFile("random", 5000, 7);
  const { allocated } = usageOf(file, file.devices[0]!);
  for (const axis of [axisOf(file.devices[0]!, "events"), timeAxis(burstTimes(allocated.length - 1, random(2)))]) {
    const { entries } = columnsOf(allocated, axis, 0, allocated.length - 1, 40);
    assert.equal(Math.max(...entries.map((entry) => allocated[entry]!)), Math.max(...allocated));
  }
});

test("each colouring has a group for each block, and a swatch for each group", () => {
  const file = exampleFile("training", 3000);
  const model = { file, device: file.devices[0]! };
  for (const colour of COLOURS) {
    const { names, of, swatch } = groupsOf(model as never, colour);
    assert.equal(names.length, swatch.length);
    assert.equal(of.length, model.device.blocks.count);
    assert.ok(of.every((group) => group < names.length), colour);
    assert.ok(names.length > 1, colour);
  }
});

test("call sites beyond the largest share one group", () => {
  const file = exampleFile("training", 3000);
  const device = file.devices[0]!;
  const sites = 30;
  const stack = Uint32Array.from({ length: device.blocks.count }, (_, i) => i % sites);
  const site = Uint32Array.from({ length: sites }, (_, i) => i);
  const model = {
    file: { ...file, sites: [...site].map((i) => `site ${i}`), stacks: { ...file.stacks, site } },
    device: { ...device, blocks: { ...device.blocks, stack } },
  };
  const { names, of, swatch } = groupsOf(model as never, "site");
  assert.equal(names.length, MOST_GROUPS + 1);
  assert.equal(swatch.length, names.length);
  assert.equal(names.at(-1), `all others (${sites - MOST_GROUPS})`);
  for (const [block, group] of of.entries()) {
    const expected = names.indexOf(`site ${stack[block]!}`);
    assert.equal(group, expected < 0 ? MOST_GROUPS : expected);
  }
});

test("every byte of every segment has one place on the map", () => {
  for (const program of ["fragmentation", "expandable", "random"] as const) {
    const file = exampleFile(program, 6000);
    const layout = layoutsOf(file, file.devices[0]!).at(4000);
    for (const magnification of [1, 8, 256]) {
      const rows = mapRows(layout, 900, 300, magnification);
      const pieces = rows.groups.flatMap((group) => group.pieces);
      for (const segment of layout.segments) {
        const parts = pieces.filter((piece) => piece.segment === segment);
        let at = segment.address;
        for (const part of parts) {
          assert.equal(part.begin, at);
          at = part.end;
          assert.ok(part.x >= 0 && part.right <= 900.001 && part.y + ROW <= rows.height);
        }
        assert.equal(at, segment.address + segment.size_bytes);
        const middle = segment.address + segment.size_bytes / 2;
        const piece = pieceOf(rows, middle)!;
        assert.equal(piece.segment, segment);
        const x = (piece.x + piece.right) / 2;
        assert.equal(pieceAt(rows, x, piece.y + 2), piece);
        assert.ok(Math.abs(addressAt(piece, x) - (piece.begin + piece.end) / 2) < 2);
      }
      for (const [i, piece] of pieces.entries()) {
        const after = pieces[i + 1];
        if (after && after.y === piece.y) assert.ok(after.x >= piece.right);
      }
    }
  }
});
