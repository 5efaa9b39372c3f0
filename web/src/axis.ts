/**
 * The axis of the timeline: the places of entries along the events or along the time, and the
 * interval of entries that is shown.
 *
 * A place is a number of events, or microseconds after the first event. On an axis of time, an entry
 * is as wide as its moment lasts, so that entries of one microsecond have no width.
 */

import type { Device } from "./model.ts";
import { firstWhere } from "./sort.ts";

export const AXES = ["events", "time"] as const;
export type AxisName = (typeof AXES)[number];
export type Interval = [number, number];

/** The fewest entries that the timeline shows. */
const LEAST_ENTRIES = 8;

export interface Axis {
  isTime: boolean;
  entries: number;
  /** The place of the left edge of an entry, which may be a fraction; the end is that of `entries`. */
  at(entry: number): number;
  /** The entry at a place, as a fraction. */
  entry(place: number): number;
}

const known = new WeakMap<Device, Axis>();

/** Return an axis of a device: without times, that of events. */
export function axisOf(device: Device, name: AxisName): Axis {
  const entries = device.events.count + 1;
  if (name === "events" || !device.has_times) {
    return { isTime: false, entries, at: (entry) => entry, entry: (place) => place };
  }
  let found = known.get(device);
  if (!found) known.set(device, (found = timeAxis(device.events.time_us)));
  return found;
}

/** Return the axis of events with these times; -1: the time is unknown, as that of the event before. */
export function timeAxis(time_us: Float64Array): Axis {
  const entries = time_us.length + 1;
  const start = time_us.find((time) => time >= 0) ?? 0;
  // Entry e begins with event e - 1. Nothing is known of the time before the first event and after
  // the last one.
  const edges = new Float64Array(entries + 1);
  for (let e = 1; e < entries; e++) edges[e] = Math.max(edges[e - 1]!, time_us[e - 1]! - start);
  edges[entries] = edges[entries - 1]!;
  const width = (entry: number): number => edges[entry + 1]! - edges[entry]!;
  return {
    isTime: true,
    entries,
    at(entry) {
      const exact = entry | 0;
      if (exact === entry) return edges[exact]!; // asked for each block
      const whole = Math.max(0, Math.min(entries - 1, Math.floor(entry)));
      return edges[whole]! + (entry - whole) * width(whole);
    },
    entry(place) {
      const entry = firstWhere(entries + 1, (e) => edges[e]! > place) - 1;
      if (entry < 0) return 0;
      return entry >= entries ? entries : entry + (place - edges[entry]!) / width(entry);
    },
  };
}

/** Return the first entry whose left edge is at a place or after it. */
export function firstFrom(axis: Axis, place: number): number {
  return axis.isTime ? firstWhere(axis.entries, (e) => axis.at(e) >= place) : Math.ceil(place);
}

/** Return the shown interval: first and last entry, within the history. */
export function shown(zoom: Interval | null, entries: number): Interval {
  if (!zoom) return [0, entries - 1];
  const first = Math.max(0, Math.min(zoom[0], entries - 1));
  return [first, Math.max(first, Math.min(zoom[1], entries - 1))];
}

/** Return the interval `factor` times as long, with the entry `centre` at the same place; null: all. */
export function zoomed(
  axis: Axis, [first, last]: Interval, factor: number, centre: number,
): Interval | null {
  const [begin, end] = [axis.at(first), axis.at(last + 1)];
  const at = Math.max(begin, Math.min(end, axis.at(centre)));
  const found = entriesOf(axis, at - (at - begin) * factor, (end - begin) * factor);
  if (!found) return null;
  const [from, to] = found;
  // Rounded in the direction of the zoom, so that a long moment at an edge does not end it.
  return factor < 1 ? wide(axis, Math.ceil(from), Math.floor(to) - 1, centre)
    : wide(axis, Math.floor(from), Math.ceil(to) - 1, centre);
}

/** Return the interval moved by a distance of places, and kept within the history; null: all. */
export function moved(axis: Axis, [first, last]: Interval, by: number): Interval | null {
  const [begin, end] = [axis.at(first), axis.at(last + 1)];
  const found = entriesOf(axis, begin + by, end - begin);
  if (!found) return null;
  const [from, to] = found.map(Math.round) as [number, number];
  const isSame = from === first && to === last + 1;
  const one = isSame ? Math.sign(by) : 0; // a moment that lasts long ends no movement
  return wide(axis, from + one, to - 1 + one, (from + to) / 2);
}

/** Return the entries at the ends of a length from `begin` on, moved into the axis; null: all. */
function entriesOf(axis: Axis, begin: number, length: number): Interval | null {
  const all = axis.at(axis.entries);
  if (length >= all) return null;
  const from = Math.max(0, Math.min(all - length, begin));
  // Several entries may be at the first place.
  return [from > 0 ? axis.entry(from) : 0, axis.entry(from + length)];
}

/** Return the interval, or the fewest entries around a centre; null: all entries. */
function wide({ entries }: Axis, first: number, last: number, centre: number): Interval | null {
  if (last - first + 1 < LEAST_ENTRIES) {
    first = Math.round(centre - LEAST_ENTRIES / 2);
    last = first + LEAST_ENTRIES - 1;
  }
  const by = Math.max(0, -first) - Math.max(0, last - (entries - 1));
  const found: Interval = [Math.max(0, first + by), Math.min(entries - 1, last + by)];
  return found[1] - found[0] + 1 >= entries ? null : found;
}
