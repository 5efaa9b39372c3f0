/**
 * The data of the page: what Python writes (`Page`), and what the views read (`Model`).
 *
 * The entry `e` of a device's history is the moment after event `e - 1`; entry 0 is before the
 * first event. Events and blocks are counted from 0 in each device.
 */

import { firstWhere } from "./sort.ts";

/** The row of an event whose block or segment is unknown. */
export const UNKNOWN_ROW = 0xffffffff;

/** The JSON of the page. */
export interface Page {
  format: 1;
  title: string;
  /** The version of pytracer that wrote the page. */
  pytracer: string;
  /** The time of writing, in ISO format. */
  created: string;
  /** Sentences: what the page leaves out, and how to have it. */
  left_out: string[];
  /** `is_leak`: the heading names a leak, which call sites show best. */
  verdict: { heading: string; lines: string[]; commands: string[]; is_leak: boolean };
  /** One for each file, such as the files of the ranks. `files[0]` is opened at the start. */
  files: FileEntry[];
  /** With a baseline: `files[0]` is the run and `files[1]` the baseline. */
  difference: Difference | null;
}

export interface FileEntry {
  name: string;
  rank: number | null;
  verdict: string;
  peak_bytes: number;
  peak_reserved_bytes: number;
  capacity_bytes: number | null;
  ooms: number;
  /** At most 300 points each; a point is the maximum of its interval. */
  curve: { allocated: number[]; reserved: number[] };
  /** The id of the element with the file's data; null: the data is left out. */
  data: string | null;
}

export interface Change {
  /** The call site or the module. */
  name: string;
  before_bytes: number;
  after_bytes: number;
  share: string;
}

export interface Difference {
  /** `share`: the change as a percentage or a factor, or "new" or "gone". */
  rows: Change[];
  /** The same by module; [] if a file does not have its modules. */
  modules: Change[];
  sentence: string;
  /** The allocated bytes over the same steps, or over the events of each file; null: unknown. */
  curves: {
    before: number[];
    after: number[];
    /** What the first and the last point are of. */
    ends: [string, string];
    largest: { bytes: number; where: string };
  } | null;
}

/** The data of one file, decoded. */
export interface FileData {
  path: string;
  strings: string[];
  /** The names of the values in `Events.action`. */
  actions: string[];
  /** How many frames of a stack were recorded at most; 0: all. */
  stack_depth: number;
  frames: Frames;
  stacks: Stacks;
  /** The texts of call sites; `sites[0]` is "(not known)". */
  sites: string[];
  /** `phases[0]` is "": in no phase. */
  phases: string[];
  categories: string[];
  /** For each kind of block: an index in `categories`, and the rule that decided. */
  kinds: [number, string][];
  pools: [number, number][];
  /** The paths of modules, as in "layers.3.attn"; `modules[0]` is "". */
  modules: string[];
  devices: Device[];
}

export interface Frames {
  count: number;
  /** Indices in `FileData.strings`. */
  filename: Uint32Array;
  name: Uint32Array;
  line: Uint32Array;
  /** 1: of the program, and neither of torch nor of pytracer nor of Python's library. */
  is_program: Uint8Array;
}

/** Call stacks, innermost frame first; stack 0 is empty. */
export interface Stacks {
  count: number;
  /** The frames of stack s are `frame[offsets[s]]` to `frame[offsets[s + 1] - 1]`. */
  offsets: Uint32Array;
  frame: Uint32Array;
  /** The call site of each stack, an index in `FileData.sites`. */
  site: Uint32Array;
  /** The stack of the forward call that made the autograd node; 0: none. */
  forward: Uint32Array;
  /** The name of the autograd node, an index in `FileData.strings`; 0: none. */
  node: Uint32Array;
  is_exact: Uint8Array;
}

export interface Device {
  name: string;
  /** The CPU's allocator has no segments: its files have a segment for each block. */
  is_cpu: boolean;
  /** Whether the file has all segments; if not, reserved bytes are unknown. */
  segments_are_known: boolean;
  /** How much the allocator could reserve; null: unknown. */
  capacity_bytes: number | null;
  /** The entry from which the capacity is unknown; null: it is that of the complete recording. */
  capacity_until: number | null;
  has_times: boolean;
  /** The first entry from which all sizes are exact. */
  exact_from: number;
  /** Why there is no history: then the device has events, but no blocks. */
  contradiction: string | null;
  /** The number of earlier events that were left out; add it to the number of an event. */
  first_event: number;
  events: Events;
  others: Others;
  blocks: Blocks;
  /** The segments before the first event, by address. */
  segments: Segments;
  /** What all addresses are relative to, as hexadecimal digits. */
  address_base: string;
  /** Pairs of a step and its first event. */
  steps: [number, number][];
  /** The phases as intervals of events; [] if unknown. */
  spans: Span[];
  marks: Mark[];
}

export interface Span {
  name: string;
  depth: number;
  begin: number;
  end: number;
  /** In microseconds after the first event with a time. */
  begin_us: number;
  end_us: number;
}

export interface Mark {
  event: number;
  kind: "peak" | "oom" | "end";
  text: string;
}

export interface Events {
  count: number;
  action: Uint8Array;
  /** A row of `blocks` for allocations and frees, else of `others`; or `UNKNOWN_ROW`. */
  row: Uint32Array;
  time_us: Float64Array;
  stack: Uint32Array;
  phase: Uint32Array;
}

/** The events that are neither allocations nor frees, in order. */
export interface Others {
  count: number;
  address: Float64Array;
  size_bytes: Float64Array;
  stream: Float64Array;
  pool: Uint32Array;
  is_small: Uint8Array;
}

/**
 * Every block, sorted by `alloc_event`.
 *
 * An event of -1 is before the first event, and one of `Events.count` is after the last one. A
 * block is allocated at the entries from `alloc_event + 1` to `free_requested_event`, and active to
 * `free_event`: between the two, its memory waits for a stream.
 */
export interface Blocks {
  count: number;
  address: Float64Array;
  size_bytes: Float64Array;
  requested_bytes: Float64Array;
  stream: Float64Array;
  pool: Uint32Array;
  stack: Uint32Array;
  phase: Uint32Array;
  alloc_event: Int32Array;
  free_requested_event: Int32Array;
  free_event: Int32Array;
  is_sized: Uint8Array;
  /** An index in `FileData.kinds`. */
  kind: Uint8Array;
  /** The name of the largest tensor in the block, an index in `FileData.strings`; 0: unknown. */
  owner: Uint32Array;
  /** What keeps or kept the block, as in "kept by x of main()": in `FileData.strings`; 0: unknown. */
  holder: Uint32Array;
  /** The module that the block belongs to, an index in `FileData.modules`; 0: unknown. */
  module: Uint32Array;
}

export interface Segments extends Others {
  is_expandable: Uint8Array;
}

/** Columns with one value for each entry, which is one more than there are events. */
export interface Usage {
  /** The bytes that the program holds. */
  allocated: Float64Array;
  /** `allocated`, and the blocks whose free waits for a stream. */
  active: Float64Array;
  /** The bytes of the segments; 0 on a device without segments, such as the CPU. */
  reserved: Float64Array;
  has_segments: boolean;
}

/** A segment, or a contiguous mapped part of an expandable one. */
export interface Segment {
  readonly address: number;
  readonly size_bytes: number;
  readonly stream: number;
  /** An index in `FileData.pools`. */
  readonly pool: number;
  /** Whether it has blocks of at most 1 MiB. */
  readonly is_small: boolean;
  readonly is_expandable: boolean;
}

export interface Layout {
  entry: number;
  /** The segments, by address. */
  segments: readonly Segment[];
  /** The active blocks (indices in `Device.blocks`), by address. */
  blocks: Uint32Array;
}

/** Gives the layout at an entry, in a few milliseconds for a million events. */
export interface Layouts {
  at(entry: number): Layout;
}

/** What the views of an open file and device read. */
export interface Model {
  page: Page;
  file: FileData;
  device: Device;
  usage: Usage;
  layouts: Layouts;
}

/** Return the index of an action in a file; -1 if the file has no such action. */
export function actionOf(file: FileData, name: string): number {
  return file.actions.indexOf(name);
}

/** The steps of a recording: pairs of a step and its first event, by event. */
export type Steps = readonly (readonly [step: number, firstEvent: number])[];

/** Return the index of the step that an event belongs to; -1 before the first known step. */
export function stepIndexAt(steps: Steps, event: number): number {
  return firstWhere(steps.length, (i) => steps[i]![1] > event) - 1;
}

/** Return the entry that matters: the last out-of-memory error, else the peak, else the end. */
export function mainEntry({ marks, events }: Device): number {
  const last = (kind: Mark["kind"]): Mark | undefined =>
    marks.filter((mark) => mark.kind === kind).at(-1);
  const mark = last("oom") ?? last("peak");
  return mark ? mark.event + 1 : events.count;
}

/** Return the step at an entry as [step, first event]; null before the first step. */
export function stepAt(device: Device, event: number): [number, number] | null {
  return device.steps[stepIndexAt(device.steps, event)] ?? null;
}
