/** Sizes, counts and addresses as text, as pytracer's command line prints them. */

import type { Device, FileData } from "./model.ts";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** Return bytes to four digits, as in "12.05 MiB": the text of pytracer's `size()`. */
export function size(bytes: number): string {
  let unit = 0;
  while (Math.abs(Number(bytes.toPrecision(4))) >= 1024 && unit + 1 < UNITS.length) {
    bytes /= 1024;
    unit += 1;
  }
  return `${Number(bytes.toPrecision(4))} ${UNITS[unit]}`;
}

/** Return a number with its sign, as in "+12.05 MiB". */
export function change(bytes: number): string {
  return bytes > 0 ? `+${size(bytes)}` : size(bytes);
}

/**
 * Return a name of at most `most` letters, with its middle cut out. A call site keeps its line, and
 * as much of its file and its function as there is room for.
 */
export function shortName(text: string, most: number): string {
  if (text.length <= most) return text;
  const line = /:\d+(?= |$)/.exec(text)?.index;
  if (line === undefined) {
    const end = Math.floor((most - 1) / 2);
    return `${text.slice(0, most - 1 - end)}…${text.slice(-end)}`;
  }
  const room = Math.ceil(most * 0.6);
  const tail = text.length - line > room ? `${text.slice(line, line + room - 1)}…` : text.slice(line);
  const file = text.slice(text.lastIndexOf("/", line) + 1, line);
  const left = most - tail.length;
  if (file.length > left) return `${file.slice(0, left - 1)}…${tail}`;
  return file.length + 2 > left ? `${file}${tail}` : `…/${file}${tail}`;
}

const NUMBERS = new Intl.NumberFormat("en-US"); // making one takes longer than to write a number

/** Return a number with separators, as in "1,000,000". */
export function count(value: number): string {
  return NUMBERS.format(value);
}

/** Return a number and its noun, as in "1 block" or "1,000 blocks". */
export function counted(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** Return microseconds as text, as in "12.05 ms". */
export function duration(microseconds: number): string {
  const value = Math.abs(microseconds);
  const [divisor, unit] = value < 1e3 ? [1, "µs"] : value < 1e6 ? [1e3, "ms"] : [1e6, "s"];
  return `${Number((microseconds / (divisor as number)).toPrecision(4))} ${unit}`;
}

/** Return a time in microseconds with the digits that differ from the next one, `step` later. */
export function roundTime(microseconds: number, step: number): string {
  const most = Math.max(microseconds, step);
  const [divisor, unit] = most < 1e3 ? [1, "µs"] : most < 1e6 ? [1e3, "ms"] : [1e6, "s"];
  const digits = Math.max(0, Math.ceil(Math.log10((divisor as number) / step)));
  return `${(microseconds / (divisor as number)).toFixed(digits)} ${unit}`;
}

/** Return which moment an entry is. */
export function momentText(device: Device, entry: number): string {
  return entry > 0 ? `after event ${eventNumber(device, entry - 1)}` : "before the first event";
}

/** Return a range of entries as "after event 29 up to event 79". */
export function rangeText(device: Device, [first, last]: [number, number]): string {
  const begin = first ? momentText(device, first) : "from the first event";
  return last ? `${begin} up to event ${eventNumber(device, last - 1)}` : begin;
}

/** Return the number that people see for an event. */
export function eventNumber(device: Device, event: number): string {
  return count(device.first_event + event);
}

/** Return what the addresses of a device are relative to. */
export function addressBase(device: Device): bigint {
  return BigInt(device.address_base);
}

/** Return an address in full, as in "0x7f0012000000". */
export function address(device: Device, relative: number): string {
  return `0x${(addressBase(device) + BigInt(relative)).toString(16)}`;
}

/** Return a frame as "function (file:line)". */
export function frameText(file: FileData, frame: number): string {
  const { filename, name, line } = file.frames;
  const place = file.strings[filename[frame]!];
  const at = line[frame] ? `${place}:${line[frame]}` : place;
  return at ? `${file.strings[name[frame]!]} (${at})` : file.strings[name[frame]!]!;
}

/** Return the call site of a block's or an event's stack. */
export function siteText(file: FileData, stack: number): string {
  return file.sites[file.stacks.site[stack]!]!;
}
