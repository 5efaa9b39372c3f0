/** How the tables search a file: in its call stacks, and by numbers as texts. */

import type { FileData } from "./model.ts";
import type { TextColumn } from "./row_filter.ts";
import { frameText } from "./text.ts";

const searches = new WeakMap<FileData, (word: string) => Uint8Array>();

/** Return for each call stack of a file whether it has a word, which is in lower case. */
export function stacksWith(file: FileData, word: string): Uint8Array {
  let search = searches.get(file);
  if (!search) {
    const frames = Array.from({ length: file.frames.count }, (_, frame) => frameText(file, frame));
    searches.set(file, (search = stackSearch(file, frames)));
  }
  return search(word);
}

/**
 * Return a function that finds the call stacks with a word in lower case: in a frame, in the call
 * site, or in those of the forward call that made a backward's node.
 */
export function stackSearch(
  { stacks, sites }: Pick<FileData, "stacks" | "sites">, frames: readonly string[],
): (word: string) => Uint8Array {
  const [lowFrames, lowSites] = [frames, sites].map((texts) => texts.map((text) => text.toLowerCase()));
  return (word) => {
    const inFrame = Uint8Array.from(lowFrames!, (text) => Number(text.includes(word)));
    const inSite = Uint8Array.from(lowSites!, (text) => Number(text.includes(word)));
    const own = new Uint8Array(stacks.count);
    for (let stack = 0; stack < stacks.count; stack++) {
      own[stack] = inSite[stacks.site[stack]!]!;
      const end = stacks.offsets[stack + 1]!;
      for (let i = stacks.offsets[stack]!; i < end && !own[stack]; i++) {
        own[stack] = inFrame[stacks.frame[i]!]!;
      }
    }
    return own.map((found, stack) => found || (stacks.forward[stack]! && own[stacks.forward[stack]!]!));
  };
}

/** Return a column of numbers, such as streams, as a column of their texts. */
export function textsOfNumbers(count: number, numberOf: (row: number) => number): TextColumn {
  const places = new Map<number, number>();
  const index = new Uint32Array(count);
  for (let row = 0; row < count; row++) {
    const number = numberOf(row);
    let place = places.get(number);
    if (place === undefined) places.set(number, (place = places.size));
    index[row] = place;
  }
  return { texts: [...places.keys()].map(String), index: (row) => index[row]! };
}
