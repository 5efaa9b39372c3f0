/** What tables and the panel of a block say about a block. */

import { ALLOCATED, STATES, lifeInSteps, stateAt } from "./lives.ts";
import type { Model } from "./model.ts";
import { count, counted, duration, eventNumber, siteText, size } from "./text.ts";

/** Return the size that the allocator gave a block; "≥" where the file only has a bound. */
export function blockSize({ device }: Model, block: number): string {
  const { size_bytes, is_sized } = device.blocks;
  return `${is_sized[block] ? "" : "≥ "}${size(size_bytes[block]!)}`;
}

/** Return the state of a block at an entry. */
export function stateText({ device }: Model, block: number, entry: number): string {
  return STATES[stateAt(device.blocks, block, entry)]!;
}

/** Return an event's number, and its time since the first event if the file has times. */
export function eventText({ device }: Model, event: number): string {
  const { time_us } = device.events;
  const number = eventNumber(device, event);
  return device.has_times ? `${number} at ${duration(time_us[event]! - time_us[0]!)}` : number;
}

/** Return when a block was allocated. */
export function allocatedText(model: Model, block: number): string {
  const event = model.device.blocks.alloc_event[block]!;
  return event < 0 ? "before the first event" : eventText(model, event);
}

/** Return how long before an entry a block was allocated that is allocated then; else "". */
export function ageText({ device }: Model, block: number, entry: number): string {
  const { blocks, events, has_times } = device;
  const begin = blocks.alloc_event[block]!;
  if (stateAt(blocks, block, entry) !== ALLOCATED) return "";
  if (begin < 0) return "older";
  if (!has_times) return counted(entry - 1 - begin, "event");
  return duration(events.time_us[entry - 1]! - events.time_us[begin]!);
}

/** Return when the program freed a block. */
export function freedText(model: Model, block: number): string {
  const event = model.device.blocks.free_requested_event[block]!;
  if (event < 0) return "before the first event";
  return event >= model.device.events.count ? "not freed" : eventText(model, event);
}

/** Return how many steps a block lived, as in "2" or "≥ 3"; "" without steps. */
export function lifeText({ device }: Model, block: number): string {
  const life = lifeInSteps(device.blocks, block, device.steps, device.events.count);
  return life ? `${life.isAtLeast ? "≥ " : ""}${count(life.steps)}` : "";
}

/** Return the life of a block for its panel, as in "2 steps, 12.05 ms". */
export function longLifeText(model: Model, block: number): string {
  const { device } = model;
  const parts: string[] = [];
  const life = lifeInSteps(device.blocks, block, device.steps, device.events.count);
  const bound = life?.isAtLeast ? "at least " : "";
  if (life) parts.push(life.steps || bound ? `${bound}${counted(life.steps, "step")}` : "within one step");
  const begin = device.blocks.alloc_event[block]!;
  const end = device.blocks.free_requested_event[block]!;
  if (device.has_times && begin >= 0 && end < device.events.count && end >= 0) {
    parts.push(duration(device.events.time_us[end]! - device.events.time_us[begin]!));
  }
  return parts.join(", ");
}

/** Return the category of a block. */
export function categoryText({ file, device }: Model, block: number): string {
  return file.categories[file.kinds[device.blocks.kind[block]!]![0]]!;
}

/** Return the number of the text of what has a block, or what keeps or kept it; 0: unknown. */
export function ownerOf(model: Model, block: number): number {
  const [owner, holder] = [model.device.blocks.owner[block]!, model.device.blocks.holder[block]!];
  // A node of a graph has an activation: who keeps the graph says more.
  return categoryText(model, block) === "activation" ? holder || owner : owner || holder;
}

/** Return the important facts of a block, for a tooltip. */
export function tooltipLines(model: Model, block: number): string[] {
  const { file, device } = model;
  const owner = file.strings[ownerOf(model, block)];
  const life = longLifeText(model, block);
  return [
    `${blockSize(model, block)} · ${categoryText(model, block)}${owner ? ` · ${owner}` : ""}`,
    siteText(file, device.blocks.stack[block]!),
    `allocated ${allocatedText(model, block)}`,
    `freed: ${freedText(model, block)}${life ? ` (life: ${life})` : ""}`,
  ];
}
