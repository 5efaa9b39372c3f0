/** How the tables search a file: in its call stacks, and by numbers as texts. */

import type { FileData } from "./model.ts";
import { stackSearch, type TextColumn } from "./row_filter.ts";
import { frameText } from "./text.ts";

const searches = new WeakMap<FileData, (word: string) => Uint8Array>();

/** Return for each call stack of a file whether it has a word, which is in lower case. */
export function stacksWith(file: FileData, word: string): Uint8Array {
  let search = searches.get(file);
  if (!search) {
    const frames = Array.from({ length: file.frames.count }, (_, frame) => frameText(file, frame));
    search = stackSearch({ ...file.stacks, frames, sites: file.sites });
    searches.set(file, search);
  }
  return search(word);
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
