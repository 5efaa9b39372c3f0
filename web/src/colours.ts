/** The groups of blocks that a colour stands for, and their colours and hatches. */

import type { Model } from "./model.ts";
import type { Colour } from "./selection.ts";

/** The groups of one colouring, most important first. */
export interface Groups {
  /** The text of each group; the last one may be "other". */
  names: string[];
  /** For each block its group. */
  of: Uint8Array;
}

/** Return the groups of a colouring; computed once for each device. */
export function groupsOf(_model: Model, _colour: Colour): Groups {
  return { names: ["all"], of: new Uint8Array(_model.device.blocks.count) };
}

/** Return the fill of a group in the current theme: a CSS colour. */
export function colourOf(_group: number): string {
  return "#4a90d9";
}

/** Return whether the browser prefers a dark page. */
export function isDark(): boolean {
  return matchMedia("(prefers-color-scheme: dark)").matches;
}
