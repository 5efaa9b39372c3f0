/**
 * Synthetic traces for the tests and for development: a small caching allocator with steps, phases
 * and call sites, which runs one of several programs.
 *
 * Sizes and lifetimes come from a seeded generator, so that each run makes the same trace.
 */

import type { Device, FileData } from "../src/model.ts";
import { usageOf } from "../src/usage.ts";
import { ACTIONS, KIB, MIB, OOM, Recorder, SNAPSHOT } from "./recorder.ts";

export type Program = "training" | "leak" | "fragmentation" | "random" | "expandable";

/** Return a generator of numbers from 0 to 1 (mulberry32). */
export function random(seed: number): () => number {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let value = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    value = (value + Math.imul(value ^ (value >>> 7), 61 | value)) ^ value;
    return ((value ^ (value >>> 14)) >>> 0) / 4294967296;
  };
}

const SITES = [
  ["embed", "model.py", 41],
  ["attention", "model.py", 77],
  ["mlp", "model.py", 93],
  ["loss", "train.py", 120],
  ["backward", "train.py", 131],
  ["optimizer_step", "train.py", 140],
  ["log_metrics", "metrics.py", 18],
  ["load_batch", "data.py", 55],
  ["<img onerror=alert(1) src=x>", "we\"ird '</script>.py", 7],
] as const;
const KINDS: [string, string][] = [
  ["unknown", "no_fact"],
  ["activation", "freed_by_node"],
  ["temporary", "within_forward"],
  ["gradient", "zero_grad"],
  ["parameter", "tensor"],
  ["optimizer state", "tensor"],
];
const PHASES = ["", "forward", "backward", "optimizer"];

/** Run a program until it has made about `count` events, and return the file. */
export function exampleFile(program: Program, count: number, seed = 1): FileData {
  const next = random(seed);
  const recorder = new Recorder(program === "expandable");
  const size = (least: number, most: number): number =>
    Math.round(least * (most / least) ** next());
  const phase = (index: number, run: () => void): void => {
    const begin = recorder.events.length;
    recorder.phase = index;
    run();
    recorder.spans.push({ name: PHASES[index]!, depth: 0, begin, end: recorder.events.length });
    recorder.phase = 0;
  };
  if (program === "random") randomProgram(recorder, next, count);
  else {
    const layers = Math.max(3, Math.min(48, Math.round(count / 400)));
    const weights: number[] = [];
    for (let i = 0; i < layers; i++) weights.push(recorder.alloc(size(4 * MIB, 24 * MIB), 1, 4));
    for (let i = 0; i < layers; i++) {
      recorder.alloc(recorder.blocks[weights[i]!]!.requested, 6, 5);
    }
    const kept: number[] = [];
    for (let step = 1; recorder.events.length < count; step++) {
      recorder.steps.push([step, recorder.events.length]);
      const activations: number[] = [];
      const batch = recorder.alloc(size(1 * MIB, 3 * MIB), 8, 0);
      phase(1, () => {
        for (let i = 0; i < layers; i++) {
          activations.push(recorder.alloc(size(2 * MIB, 16 * MIB), 2 + (i % 2), 1));
          if (program === "fragmentation" && i % 6 === step % 6 && step < 40) {
            kept.push(recorder.alloc(size(1.1 * MIB, 1.5 * MIB), 7, 0));
          }
          for (let j = 0; j < 3; j++) {
            recorder.free(recorder.alloc(size(512, 8 * MIB), 2 + (j % 2), 2), 2);
          }
        }
        if (program === "leak") kept.push(recorder.alloc(6 * MIB + 300, 7, 0));
        activations.push(recorder.alloc(size(64 * KIB, MIB), 4, 1));
      });
      const gradients: number[] = [];
      phase(2, () => {
        for (const block of activations.reverse()) {
          if (gradients.length < layers) {
            gradients.push(recorder.alloc(size(4 * MIB, 12 * MIB), 9, 3));
          }
          recorder.request(block, 5);
          if (next() < 0.1) recorder.free(recorder.alloc(size(512, MIB), 5, 2), 5);
          recorder.complete(block, 5);
        }
      });
      phase(3, () => {
        for (const block of gradients) {
          recorder.free(recorder.alloc(size(2 * MIB, 9 * MIB), 6, 2), 6);
          recorder.free(block, 6);
        }
      });
      recorder.free(batch, 8);
      if (program === "fragmentation" && step % 10 === 0) recorder.emptyCache();
      if (program === "expandable" && step % 2 === 0) recorder.emptyCache();
    }
    if (program === "fragmentation") {
      recorder.other(OOM, 0, 600 * MIB, false, 2);
    }
  }
  recorder.other(SNAPSHOT, 0, 0, false);
  return fileOf(recorder, program);
}

/** Allocations and frees without a plan, with frees that wait, and an emptied cache. */
function randomProgram(recorder: Recorder, next: () => number, count: number): void {
  const live: number[] = [];
  const pending: number[] = [];
  const take = (from: number[]): number => from.splice(Math.floor(next() * from.length), 1)[0]!;
  while (recorder.events.length < count) {
    const dice = next();
    const stack = 1 + Math.floor(next() * SITES.length);
    if (dice < 0.5 || !live.length) {
      live.push(recorder.alloc(Math.ceil(2 ** (9 + 15 * next())), stack, stack % KINDS.length));
    } else if (dice < 0.8) recorder.free(take(live), stack);
    else if (dice < 0.9) {
      const block = take(live);
      recorder.request(block, stack);
      pending.push(block);
    } else if (dice < 0.99) {
      if (pending.length) recorder.complete(take(pending), stack);
    } else recorder.emptyCache();
  }
}

function fileOf(recorder: Recorder, name: string): FileData {
  const { events, others, blocks } = recorder;
  const strings = ["", "train", "/home/user/run/train.py", ...SITES.flatMap(([fn, file]) => [fn, file])];
  const categories = [...new Set(KINDS.map(([category]) => category))];
  const frames = SITES.length + 1;
  const row = (_: unknown, i: number): number => i;
  const last = (value: number): number => (value === Infinity ? events.length : value);
  // Every stack has its call site's frame, and the frame of train() around it.
  const device: Device = {
    name: "cuda:0",
    capacity_bytes: Math.ceil((recorder.reserved * 1.1) / MIB) * MIB,
    capacity_until: null,
    has_times: true,
    exact_from: 0,
    is_cpu: false,
    segments_are_known: true,
    contradiction: null,
    first_event: 0,
    events: {
      count: events.length,
      action: Uint8Array.from(events, (event) => event.action),
      row: Uint32Array.from(events, (event) => event.row),
      time_us: Float64Array.from(events, (event) => event.time),
      stack: Uint32Array.from(events, (event) => event.stack),
      phase: Uint32Array.from(events, (event) => event.phase),
    },
    others: {
      count: others.length,
      address: Float64Array.from(others, (other) => other.address),
      size_bytes: Float64Array.from(others, (other) => other.size),
      stream: new Float64Array(others.length),
      pool: Uint32Array.from(others, (other) => other.pool),
      is_small: Uint8Array.from(others, (other) => Number(other.small)),
    },
    blocks: {
      count: blocks.length,
      address: Float64Array.from(blocks, (block) => block.address),
      size_bytes: Float64Array.from(blocks, (block) => block.size),
      requested_bytes: Float64Array.from(blocks, (block) => block.requested),
      stream: new Float64Array(blocks.length),
      pool: new Uint32Array(blocks.length),
      stack: Uint32Array.from(blocks, (block) => block.stack),
      phase: Uint32Array.from(blocks, (block) => block.phase),
      alloc_event: Int32Array.from(blocks, (block) => block.alloc),
      free_requested_event: Int32Array.from(blocks, (block) => last(block.requestedFree)),
      free_event: Int32Array.from(blocks, (block) => last(block.free)),
      is_sized: new Uint8Array(blocks.length).fill(1),
      kind: Uint8Array.from(blocks, (block) => block.kind),
      owner: new Uint32Array(blocks.length),
      // Every third block without an owner is kept by an object, of which only the name counts.
      holder: Uint32Array.from(blocks, (_, block) => (block % 3 ? 0 : 1)),
      module: new Uint32Array(blocks.length),
    },
    segments: {
      count: 0,
      address: new Float64Array(0),
      size_bytes: new Float64Array(0),
      stream: new Float64Array(0),
      pool: new Uint32Array(0),
      is_small: new Uint8Array(0),
      is_expandable: new Uint8Array(0),
    },
    address_base: "0x7f0012000000",
    steps: recorder.steps,
    spans: recorder.spans.map((span) =>
      ({ ...span, begin_us: span.begin * 3.5, end_us: span.end * 3.5 })),
    marks: [],
  };
  const file: FileData = {
    path: `${name}.pickle`,
    strings,
    actions: ACTIONS,
    stack_depth: 0,
    frames: {
      count: frames,
      filename: Uint32Array.from({ length: frames }, (_, i) => (i ? 2 + 2 * i : 2)),
      name: Uint32Array.from({ length: frames }, (_, i) => (i ? 1 + 2 * i : 1)),
      line: Uint32Array.from({ length: frames }, (_, i) => (i ? SITES[i - 1]![2] : 160)),
      is_program: new Uint8Array(frames).fill(1),
    },
    stacks: {
      count: frames,
      offsets: Uint32Array.from({ length: frames + 1 }, (_, i) => Math.max(0, (i - 1) * 2)),
      frame: Uint32Array.from(SITES.flatMap((_, i) => [i + 1, 0])),
      site: Uint32Array.from({ length: frames }, row),
      forward: new Uint32Array(frames),
      node: new Uint32Array(frames),
      is_exact: new Uint8Array(frames),
    },
    sites: ["(not known)", ...SITES.map(([fn, path, line]) => `${path}:${line} ${fn}`)],
    phases: PHASES,
    categories,
    kinds: KINDS.map(([category, rule]) => [categories.indexOf(category), rule]),
    pools: [[0, 0]],
    modules: [""],
    devices: [device],
  };
  const { allocated } = usageOf(file, device);
  let peak = 0;
  for (let i = 0; i < allocated.length; i++) if (allocated[i]! > allocated[peak]!) peak = i;
  device.marks.push({ event: peak - 1, kind: "peak", text: "peak of allocated memory" });
  const oom = events.findIndex((event) => event.action === OOM);
  if (oom >= 0) device.marks.push({ event: oom, kind: "oom", text: "out of memory: 600 MiB" });
  device.marks.push({ event: events.length - 1, kind: "end", text: "end of the trace" });
  return file;
}
