/**
 * From the text in the page to typed columns.
 *
 * A file's data is Base64 of a zlib stream. Its bytes are a header (a length of 4 bytes, JSON,
 * padding to 8 bytes) and the columns. A column is stored as byte planes: first the lowest byte of
 * each value, then the second bytes, and so on, because zlib packs these better.
 */

import type {
  Blocks,
  Device,
  Events,
  FileData,
  Frames,
  Mark,
  Others,
  Segments,
  Span,
  Stacks,
} from "./model.ts";

/** How a column is stored. */
export interface Col {
  type: "u8" | "u16" | "u32" | "i32" | "f64";
  /** The first byte of the column, relative to the end of the header. */
  offset: number;
  /** The number of values. */
  length: number;
  /** The stored values are differences from the value before; the first one is from 0. */
  delta?: boolean;
  /** All values are this one, and no bytes are stored. */
  constant?: number;
}

type Columns<T> = { [K in keyof T]: T[K] extends number ? number : Col };
type StoredDevice = Omit<Device, "events" | "others" | "blocks" | "segments" | "spans"> & {
  events: Columns<Events>;
  others: Columns<Others>;
  blocks: Columns<Blocks>;
  segments: Columns<Segments>;
  spans?: Span[];
  marks: Mark[];
};

/** The JSON at the beginning of a file's data. */
export type Header = Omit<FileData, "frames" | "stacks" | "devices"> & {
  frames: Columns<Frames>;
  stacks: Columns<Stacks>;
  devices: StoredDevice[];
};

const TYPES = {
  u8: Uint8Array,
  u16: Uint16Array,
  u32: Uint32Array,
  i32: Int32Array,
  f64: Float64Array,
} as const;
type Column = InstanceType<(typeof TYPES)[keyof typeof TYPES]>;

/** Decode the text of a data element. */
export async function decodeText(base64: string): Promise<FileData> {
  const letters = atob(base64.trim());
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < packed.length; i++) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return decodeBuffer(await new Response(stream).arrayBuffer());
}

/** Decode the bytes of a file's data after decompression. */
export function decodeBuffer(buffer: ArrayBuffer): FileData {
  const length = new DataView(buffer).getUint32(0, true);
  const text = new TextDecoder().decode(new Uint8Array(buffer, 4, length));
  const header = JSON.parse(text) as Header;
  const bytes = new Uint8Array(buffer, Math.ceil((4 + length) / 8) * 8);

  // The table's other members (counts) are kept as they are.
  function table<T>(stored: Columns<T>): T {
    const found: Record<string, unknown> = {};
    for (const [name, value] of Object.entries(stored)) {
      found[name] = typeof value === "number" ? value : column(bytes, value as Col);
    }
    return found as T;
  }

  return {
    ...header,
    frames: table<Frames>(header.frames),
    stacks: table<Stacks>(header.stacks),
    devices: header.devices.map((device) => ({
      ...device,
      events: table<Events>(device.events),
      others: table<Others>(device.others),
      blocks: table<Blocks>(device.blocks),
      segments: table<Segments>(device.segments),
      spans: device.spans ?? [],
    })),
  };
}

function column(bytes: Uint8Array, stored: Col): Column {
  const values = new TYPES[stored.type](stored.length);
  if (stored.constant !== undefined) return values.fill(stored.constant);
  const width = values.BYTES_PER_ELEMENT;
  const target = new Uint8Array(values.buffer);
  for (let plane = 0; plane < width; plane++) {
    const begin = stored.offset + plane * stored.length;
    for (let i = 0, to = plane; i < stored.length; i++, to += width) target[to] = bytes[begin + i]!;
  }
  // Integer columns wrap around, as the differences do; sums of f64 are exact below 2^53.
  if (stored.delta) for (let i = 1; i < values.length; i++) values[i]! += values[i - 1]!;
  return values;
}
