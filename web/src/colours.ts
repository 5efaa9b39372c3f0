/** The groups of blocks that share a colour, and the colours of both themes. */

import { mainEntry, stepAt, type Model } from "./model.ts";
import type { Colour } from "./selection.ts";
import { isDark } from "./theme.ts";

/** The groups of one colouring. The most stable group comes first: it is drawn lowest. */
export interface Groups {
  /** The text of each group. */
  names: string[];
  /** For each block its group. */
  of: Uint8Array;
  /** For each group its place in the palette. */
  swatch: number[];
}

/** The most groups of a colouring; all others are in the group "all others". */
export const MOST_GROUPS = 11;

/** The swatch of groups that stand for no fact: "unknown", "all others". */
export const NEUTRAL = MOST_GROUPS;

/** The first swatch of the ramp for ordered groups: from dark (old) to light (new). */
const RAMP = 100;
const RAMP_SIZE = 32;

// Two palettes of the same hues, with lightness for a white and for a dark background. Neighbours
// differ in lightness too, so that people can distinguish them without colour.
const LIGHT = [
  "#2f6fb7", "#f0a030", "#2a9d76", "#c8508c", "#8fc4ee", "#a4552a",
  "#b9d66b", "#6d56b0", "#f4a6a0", "#167d8d", "#d9c04a", "#a9adb5",
];
const DARK = [
  "#4f8fdc", "#e39a35", "#35ad84", "#d8649e", "#9accf2", "#b86f45",
  "#b4cf68", "#8b76d0", "#f0a8a2", "#2f9bab", "#d8c255", "#71767f",
];

// Categories keep their colour in every file, so that people learn them.
const CATEGORY_SWATCHES: Record<string, number> = {
  parameter: 0,
  gradient: 1,
  "optimizer state": 2,
  temporary: 3,
  activation: 4,
  communication: 5,
  buffer: 6,
  input: 7,
  workspace: 8,
  output: 9,
  "kept by other objects": 10,
  unknown: NEUTRAL,
};

/** Return the fill of a swatch in the current theme: a CSS colour. */
export function colourOf(swatch: number): string {
  if (swatch >= RAMP) {
    const share = (swatch - RAMP) / (RAMP_SIZE - 1);
    return `hsl(${265 - 215 * share} 50% ${36 + 36 * share}%)`;
  }
  return (isDark() ? DARK : LIGHT)[swatch] ?? "#888888";
}

/** The colours of everything that is not a block, in the current theme. */
export interface Ink {
  text: string;
  faint: string;
  grid: string;
  paper: string;
  hole: string;
  reserved: string;
  limit: string;
  alarm: string;
  select: string;
  band: string;
}

const INK_LIGHT: Ink = {
  text: "#1b1f24", faint: "#57606a", grid: "rgba(110, 120, 135, 0.22)", paper: "#ffffff", hole: "#f3f4f6",
  reserved: "#24292f", limit: "#b3261e", alarm: "#b3261e", select: "#111111",
  band: "rgba(80, 100, 130, 0.10)",
};
const INK_DARK: Ink = {
  text: "#e6e9ee", faint: "#a3acb8", grid: "rgba(160, 175, 195, 0.22)", paper: "#171c23", hole: "#1e2329",
  reserved: "#e6e9ee", limit: "#ff7b72", alarm: "#ff7b72", select: "#ffffff",
  band: "rgba(160, 180, 210, 0.12)",
};

/** Return the inks of the current theme. */
export function ink(): Ink {
  return isDark() ? INK_DARK : INK_LIGHT;
}

const known = new WeakMap<Model["device"], Map<Colour, Groups>>();

/** Return the groups of a colouring; computed once for each device. */
export function groupsOf(model: Model, colour: Colour): Groups {
  let of = known.get(model.device);
  if (!of) known.set(model.device, (of = new Map<Colour, Groups>()));
  let found = of.get(colour);
  if (!found) of.set(colour, (found = makeGroups(model, colour)));
  return found;
}

function makeGroups(model: Model, colour: Colour): Groups {
  const { file, device } = model;
  const { blocks } = device;
  const keys = new Uint32Array(blocks.count);
  const texts = keysOf(model, colour, keys);
  // A key is shown for what it held at the moment that matters, or for its bytes times the events
  // for which it held them.
  const main = mainEntry(device);
  const held = new Float64Array(texts.length);
  const weights = new Float64Array(texts.length);
  const lives = new Float64Array(texts.length);
  const bytes = new Float64Array(texts.length);
  for (let i = 0; i < blocks.count; i++) {
    const life = blocks.free_requested_event[i]! - Math.max(0, blocks.alloc_event[i]!) + 1;
    weights[keys[i]!]! += blocks.size_bytes[i]! * life;
    bytes[keys[i]!]! += blocks.size_bytes[i]!;
    lives[keys[i]!]! = weights[keys[i]!]! / bytes[keys[i]!]!;
    if (blocks.alloc_event[i]! < main && blocks.free_requested_event[i]! >= main) {
      held[keys[i]!]! += blocks.size_bytes[i]!;
    }
  }
  const [allHeld, allWeights] = [held, weights].map((all) => all.reduce((sum, one) => sum + one, 0) || 1);
  const rank = (key: number): number => Math.max(held[key]! / allHeld!, weights[key]! / allWeights!);
  const present = [...texts.keys()].filter((key) => bytes[key]! > 0);
  present.sort((a, b) => rank(b) - rank(a));
  const isOrdered = colour === "step" || colour === "age";
  const shown = present.slice(0, isOrdered ? present.length : MOST_GROUPS);
  // Long-lived blocks are drawn lowest, so that a rising layer rises from still ground.
  shown.sort((a, b) => (isOrdered ? a - b : lives[b]! - lives[a]!));
  const names = shown.map((key) => texts[key]!);
  const group = new Uint8Array(texts.length).fill(shown.length);
  for (const [at, key] of shown.entries()) group[key] = at;
  const swatch = shown.map((key, at) =>
    colour === "category"
      ? (CATEGORY_SWATCHES[file.categories[key]!] ?? at % MOST_GROUPS)
      : key === 0 && colour !== "age" // unknown, in no phase, before the first step
        ? NEUTRAL
        : isOrdered
          ? RAMP + Math.round((at / Math.max(1, shown.length - 1)) * (RAMP_SIZE - 1))
          : at % MOST_GROUPS,
  );
  if (present.length > shown.length) {
    names.push(`all others (${present.length - shown.length})`);
    swatch.push(NEUTRAL);
  }
  return { names, of: Uint8Array.from(keys, (key) => group[key]!), swatch };
}

/** Fill in each block's key, and return the text of each key. */
function keysOf(model: Model, colour: Colour, keys: Uint32Array): string[] {
  const { file, device } = model;
  const { blocks } = device;
  if (colour === "category") {
    for (let i = 0; i < keys.length; i++) keys[i] = file.kinds[blocks.kind[i]!]![0];
    return file.categories;
  }
  if (colour === "site") {
    for (let i = 0; i < keys.length; i++) keys[i] = file.stacks.site[blocks.stack[i]!]!;
    return file.sites;
  }
  if (colour === "phase") {
    keys.set(blocks.phase);
    return file.phases.map((phase) => phase || "no phase");
  }
  if (colour === "step") return stepKeys(model, keys);
  const ages = ["older than the trace"];
  const parts = MOST_GROUPS - 1;
  for (let i = 1; i <= parts; i++) ages.push(`tenth ${i} of the trace`);
  for (let i = 0; i < keys.length; i++) {
    const born = blocks.alloc_event[i]!;
    keys[i] = born < 0 ? 0 : 1 + Math.floor((born * parts) / Math.max(1, device.events.count));
  }
  return ages;
}

/** Steps in at most ten groups of consecutive ones. */
function stepKeys({ device }: Model, keys: Uint32Array): string[] {
  const { steps, blocks } = device;
  const width = Math.max(1, Math.ceil(steps.length / (MOST_GROUPS - 1)));
  const index = new Map(steps.map((step, i) => [step, i]));
  const texts = ["before the first step"];
  for (let i = 0; i < steps.length; i += width) {
    const [first, last] = [steps[i]![0], steps[Math.min(steps.length, i + width) - 1]![0]];
    texts.push(first === last ? `step ${first}` : `steps ${first}-${last}`);
  }
  for (let i = 0; i < keys.length; i++) {
    const step = stepAt(device, blocks.alloc_event[i]!);
    keys[i] = step ? 1 + Math.floor(index.get(step)! / width) : 0;
  }
  return texts;
}
