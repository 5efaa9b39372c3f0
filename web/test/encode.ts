/** The opposite of decode.ts: what Python does. */

import { deflateSync } from "node:zlib";
import type { Col } from "../src/decode.ts";
import type { FileData } from "../src/model.ts";

type Typed = Uint8Array | Uint16Array | Uint32Array | Int32Array | Float64Array;

const NAMES = new Map<string, Col["type"]>([
  ["Uint8Array", "u8"],
  ["Uint16Array", "u16"],
  ["Uint32Array", "u32"],
  ["Int32Array", "i32"],
  ["Float64Array", "f64"],
]);

/** Return the bytes of a file's data before compression. */
export function encodeBuffer(file: FileData): ArrayBuffer {
  const pieces: { offset: number; bytes: Uint8Array }[] = [];
  let end = 0;
  const column = (values: Typed): Col => {
    const type = NAMES.get(values.constructor.name)!;
    const col: Col = { type, offset: end, length: values.length };
    if (values.length && values.every((value) => value === values[0])) {
      return { ...col, constant: values[0]! };
    }
    // Differences help sorted columns; others are stored as they are.
    let stored = values;
    if (values.length > 2 && type !== "u8" && values.every((v, i) => !i || v >= values[i - 1]!)) {
      stored = values.map((value, i) => (i ? value - values[i - 1]! : value)) as Typed;
      col.delta = true;
    }
    const raw = new Uint8Array(stored.buffer, stored.byteOffset, stored.byteLength);
    const width = values.BYTES_PER_ELEMENT;
    const bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) {
      bytes[(i % width) * values.length + Math.floor(i / width)] = raw[i]!;
    }
    pieces.push({ offset: end, bytes });
    end = Math.ceil((end + bytes.length) / 8) * 8;
    return col;
  };
  const header = JSON.stringify(file, (_, value: unknown) =>
    ArrayBuffer.isView(value) ? column(value as Typed) : value,
  );
  const text = new TextEncoder().encode(header);
  const start = Math.ceil((4 + text.length) / 8) * 8;
  const result = new Uint8Array(start + end);
  new DataView(result.buffer).setUint32(0, text.length, true);
  result.set(text, 4);
  for (const piece of pieces) result.set(piece.bytes, start + piece.offset);
  return result.buffer;
}

/** Return the text of the data element of a file. */
export function encodeText(file: FileData): string {
  return deflateSync(new Uint8Array(encodeBuffer(file))).toString("base64");
}
