/** The interval of entries that the timeline shows. */

export type Interval = [number, number];

/** The fewest entries that the timeline shows. */
const LEAST_ENTRIES = 8;

/** Return the shown interval: first and last entry, within the history. */
export function shown(zoom: Interval | null, entries: number): Interval {
  if (!zoom) return [0, entries - 1];
  const first = Math.max(0, Math.min(zoom[0], entries - 1));
  return [first, Math.max(first, Math.min(zoom[1], entries - 1))];
}

/** Return the interval `factor` times as long, with `centre` at the same place; null: all. */
export function zoomed(
  interval: Interval,
  factor: number,
  centre: number,
  entries: number,
): Interval | null {
  const [first, last] = interval;
  const length = last - first + 1;
  const wanted = Math.max(Math.min(LEAST_ENTRIES, entries), Math.round(length * factor));
  const share = length > 1 ? (Math.max(first, Math.min(last, centre)) - first) / length : 0.5;
  return moved([0, wanted - 1], Math.round(centre - share * wanted), entries);
}

/** Return the interval moved by a number of entries, and kept within the history; null: all. */
export function moved(interval: Interval, by: number, entries: number): Interval | null {
  const length = interval[1] - interval[0] + 1;
  if (length >= entries) return null;
  const first = Math.max(0, Math.min(entries - length, Math.round(interval[0] + by)));
  return [first, first + length - 1];
}
