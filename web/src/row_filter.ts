/**
 * The rows that fit a filter.
 *
 * A word is looked for in the distinct texts of a file, of which there are few: first in the frames,
 * then in the stacks that have a frame that matches. Only numbers are compared for each row.
 */

import { addressRanges, type Term } from "./filter_terms.ts";

/** A column of texts: `index(row)` is a place in `texts`. */
export interface TextColumn {
  texts: readonly string[];
  index: (row: number) => number;
}

/** What a table offers to filters. */
export interface FilterSource {
  count: number;
  /** The address of offset 0. */
  addressBase: bigint;
  /** Address offset of a row; NaN: none. */
  address: (row: number) => number;
  sizeBytes: (row: number) => number;
  stack: (row: number) => number;
  /** Whether each call stack matches a word in lower case: one byte a stack. */
  stacksWith: (word: string) => Uint8Array;
  /** The columns that a term `key:value` may name, made when a term names them. */
  columns: Readonly<Record<string, (value: string) => TextColumn>>;
  /** Further columns in which words are looked for. */
  searched: readonly TextColumn[];
}

type Test = (row: number) => boolean;

/** The rows that fit all terms, ascending, and the keys of terms that the table does not have. */
export function filterRows(
  source: FilterSource, terms: readonly Term[],
): { rows: Uint32Array; unknownKeys: string[] } {
  const unknownKeys: string[] = [];
  let rows: Uint32Array | null = null;
  for (const term of terms) {
    const test = testOf(source, term);
    if (test) rows = rowsWith(source.count, rows, test);
    else if (term.kind === "value") unknownKeys.push(term.key);
  }
  return { rows: rows ?? rowsWith(source.count, null, () => true), unknownKeys };
}

function rowsWith(count: number, among: Uint32Array | null, test: Test): Uint32Array {
  const length = among ? among.length : count;
  const found = new Uint32Array(length);
  let next = 0;
  for (let i = 0; i < length; i++) {
    const row = among ? among[i]! : i;
    if (test(row)) found[next++] = row;
  }
  return found.subarray(0, next);
}

function testOf(source: FilterSource, term: Term): Test | null {
  switch (term.kind) {
    case "word": return wordTest(source, term.text);
    case "address": return addressTest(source, term.digits);
    case "size": {
      const { sizeBytes } = source;
      return (row) => sizeBytes(row) >= term.least && sizeBytes(row) <= term.most;
    }
    case "value": {
      const column = source.columns[term.key];
      if (!column) return null;
      const wanted = term.value.toLowerCase();
      return maskTest(column(term.value), (text) => text.toLowerCase() === wanted);
    }
  }
}

function wordTest(source: FilterSource, word: string): Test {
  const stacks = source.stacksWith(word);
  const { stack } = source;
  const others: Test[] = [];
  for (const column of source.searched) {
    if (column.texts.some((text) => text.toLowerCase().includes(word))) {
      others.push(maskTest(column, (text) => text.toLowerCase().includes(word)));
    }
  }
  const inStack: Test = (row) => stacks[stack(row)] === 1;
  if (others.length === 0) return inStack;
  return (row) => inStack(row) || others.some((test) => test(row));
}

function maskTest({ texts, index }: TextColumn, matches: (text: string) => boolean): Test {
  const mask = Uint8Array.from(texts, (text) => (matches(text) ? 1 : 0));
  return (row) => mask[index(row)] === 1;
}

function addressTest(source: FilterSource, digits: string): Test {
  const { address, sizeBytes, addressBase } = source;
  const exact = digits.length <= 16 ? Number(BigInt(`0x${digits}`) - addressBase) : NaN;
  const ranges = Float64Array.from(addressRanges(digits, addressBase).flat());
  return (row) => {
    const at = address(row);
    if (at <= exact && exact < at + sizeBytes(row)) return true;
    for (let i = 0; i < ranges.length; i += 2) {
      if (at >= ranges[i]! && at <= ranges[i + 1]!) return true;
    }
    return false;
  };
}
