/**
 * Stable sorting of row numbers by several columns.
 *
 * A radix sort needs a few passes over typed arrays, and no calls of a comparison function: one
 * million rows take a small part of a second. `Array.sort` with a comparison takes several seconds.
 */

/** One column to sort by: `value(row)` is a number; NaN is an unknown value and comes last. */
export interface SortKey {
  value: (row: number) => number;
  descending: boolean;
}

const DIGIT_BITS = 16;
const DIGITS = 1 << DIGIT_BITS;

/**
 * Return the rows in order of the keys; the first key decides, later keys decide between equals.
 *
 * Rows that are equal in all keys stay in the order in which they were.
 */
export function sortRows(rows: Uint32Array, keys: readonly SortKey[]): Uint32Array {
  let sorted = rows;
  for (const key of [...keys].reverse()) sorted = sortByKey(sorted, key);
  return sorted;
}

function sortByKey(rows: Uint32Array, { value, descending }: SortKey): Uint32Array {
  const count = rows.length;
  // The bits of the numbers as two halves whose unsigned order is the order of the numbers.
  const bits = new Uint32Array(2);
  const number = new Float64Array(bits.buffer);
  const low = new Uint32Array(count);
  const high = new Uint32Array(count);
  for (let i = 0; i < count; i++) {
    const found = value(rows[i]!);
    if (Number.isNaN(found)) {
      low[i] = high[i] = 0xffffffff; // last in both directions
      continue;
    }
    number[0] = found + 0; // -0 sorts as 0
    const flip = (bits[1]! & 0x80000000) !== 0 ? 0xffffffff : 0;
    const turn = descending ? 0xffffffff : 0;
    low[i] = bits[0]! ^ flip ^ turn;
    high[i] = bits[1]! ^ (flip | 0x80000000) ^ turn;
  }
  // The places in `rows`, which each pass moves.
  let order = Uint32Array.from({ length: count }, (_, i) => i);
  let moved = new Uint32Array(count);
  for (let pass = 0; pass < 4; pass++) {
    const digits = pass < 2 ? low : high;
    const shift = (pass % 2) * DIGIT_BITS;
    const counts = new Uint32Array(DIGITS);
    for (let i = 0; i < count; i++) counts[(digits[i]! >>> shift) & (DIGITS - 1)]!++;
    if (count === 0 || counts[(digits[0]! >>> shift) & (DIGITS - 1)] === count) continue;
    let next = 0;
    for (let digit = 0; digit < DIGITS; digit++) {
      const begin = next;
      next += counts[digit]!;
      counts[digit] = begin;
    }
    for (let i = 0; i < count; i++) {
      const place = order[i]!;
      moved[counts[(digits[place]! >>> shift) & (DIGITS - 1)]!++] = place;
    }
    [order, moved] = [moved, order];
  }
  return order.map((place) => rows[place]!);
}

/** Return the first of `count` places at which a condition holds that holds at all after it. */
export function firstWhere(count: number, holds: (place: number) => boolean): number {
  let low = 0;
  let high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Return for each text its place in alphabetical order; equal texts get the same place. */
export function ranks(texts: readonly string[]): Float64Array {
  const order = texts.map((_, index) => index);
  order.sort((a, b) => (texts[a]! < texts[b]! ? -1 : texts[a]! > texts[b]! ? 1 : 0));
  const result = new Float64Array(texts.length);
  let rank = -1;
  for (const [i, index] of order.entries()) {
    if (i === 0 || texts[index] !== texts[order[i - 1]!]) rank++;
    result[index] = texts[index] === "" ? NaN : rank; // an empty text is an unknown value
  }
  return result;
}
