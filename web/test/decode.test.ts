import assert from "node:assert/strict";
import test from "node:test";
import { decodeBuffer, decodeText } from "../src/decode.ts";
import { encodeBuffer, encodeText } from "./encode.ts";
import { exampleFile } from "./example.ts";

test("a file is the same after encoding and decoding", async () => {
  for (const program of ["training", "random"] as const) {
    const file = exampleFile(program, 3000);
    assert.deepEqual(decodeBuffer(encodeBuffer(file)), file);
    assert.deepEqual(await decodeText(encodeText(file)), file);
  }
});

test("byte planes, differences and constants of each type are decoded", () => {
  // Two columns of three values, as Python writes them: the lowest bytes come first.
  const header = {
    path: "x", strings: [], actions: [], sites: [], phases: [], categories: [], kinds: [], pools: [], modules: [],
    frames: {
      count: 3,
      filename: { type: "u32", offset: 0, length: 3 },
      name: { type: "i32", offset: 16, length: 3, delta: true },
      line: { type: "f64", offset: 0, length: 3, constant: 2 ** 40 },
    },
    stacks: { count: 0 },
    devices: [],
  };
  const text = new TextEncoder().encode(JSON.stringify(header));
  const start = Math.ceil((4 + text.length) / 8) * 8;
  const bytes = new Uint8Array(start + 32);
  new DataView(bytes.buffer).setUint32(0, text.length, true);
  bytes.set(text, 4);
  bytes.set([1, 2, 3, 0, 1, 0, 0, 0, 0, 0, 0, 255], start);
  // 5, then -1, then +2 as differences of 32 bits.
  bytes.set([5, 255, 2, 0, 255, 0, 0, 255, 0, 0, 255, 0], start + 16);
  const { frames } = decodeBuffer(bytes.buffer);
  assert.deepEqual([...frames.filename], [1, 2 + 256, 3 + 255 * 2 ** 24]);
  assert.deepEqual([...frames.name], [5, 4, 6]);
  assert.deepEqual([...frames.line], [2 ** 40, 2 ** 40, 2 ** 40]);
});
