/** What people need to know about a block, as short lines. */

import { type Device, type Model, stepAt } from "./model.ts";
import { address, count, duration, eventNumber, size } from "./text.ts";

/** Return the important facts of a block, for a tooltip. */
export function blockLines(model: Model, block: number): string[] {
  const { file, device } = model;
  const { blocks } = device;
  const owner = file.strings[blocks.owner[block]!];
  return [
    `${size(blocks.size_bytes[block]!)} · ${categoryOf(model, block)}${owner ? ` · ${owner}` : ""}`,
    file.sites[file.stacks.site[blocks.stack[block]!]!]!,
    lifeOf(model, block),
  ];
}

/** Return all facts of a block as names and values. */
export function blockFacts(model: Model, block: number): [string, string][] {
  const { file, device } = model;
  const { blocks } = device;
  const [, rule] = file.kinds[blocks.kind[block]!]!;
  const owner = file.strings[blocks.owner[block]!];
  const isSized = blocks.is_sized[block] === 1;
  return [
    ["Size", isSized ? size(blocks.size_bytes[block]!) : `at least ${size(blocks.size_bytes[block]!)}`],
    ["Requested", size(blocks.requested_bytes[block]!)],
    ["Category", `${categoryOf(model, block)}${rule ? ` (${rule})` : ""}`],
    ...(owner ? ([["Tensor", owner]] as [string, string][]) : []),
    ["Call site", file.sites[file.stacks.site[blocks.stack[block]!]!]!],
    ["Allocated", momentText(device, blocks.alloc_event[block]!)],
    ["Freed", momentText(device, blocks.free_requested_event[block]!)],
    ["Life", lifeOf(model, block)],
    ["Phase", file.phases[blocks.phase[block]!] || "none"],
    ["Address", address(device, blocks.address[block]!)],
    ["Stream", String(blocks.stream[block]!)],
  ];
}

export function categoryOf({ file, device }: Model, block: number): string {
  return file.categories[file.kinds[device.blocks.kind[block]!]![0]]!;
}

/** Return how long a block lived, in steps or events, and whether it still exists. */
export function lifeOf({ device }: Model, block: number): string {
  const { blocks, events } = device;
  const [born, freed] = [blocks.alloc_event[block]!, blocks.free_requested_event[block]!];
  const [from, to] = [Math.max(0, born), Math.min(events.count - 1, freed)];
  const parts: string[] = [];
  const [first, last] = [stepAt(device, from), stepAt(device, to)];
  if (first && last) {
    parts.push(first[0] === last[0] ? `in step ${first[0]}` : `steps ${first[0]} to ${last[0]}`);
  }
  if (device.has_times && to > from) {
    parts.push(duration(events.time_us[to]! - events.time_us[from]!));
  }
  parts.push(`${count(Math.max(0, to - from))} events`);
  if (born < 0) parts.push("older than the trace");
  if (freed >= events.count) parts.push("not freed");
  return parts.join(", ");
}

/** Return an event with its step: "event 12,345 (step 7)". */
export function momentText(device: Device, event: number): string {
  if (event < 0) return "before the trace";
  if (event >= device.events.count) return "not before the end";
  const step = stepAt(device, event);
  return `event ${eventNumber(device, event)}${step ? ` (step ${step[0]})` : ""}`;
}
