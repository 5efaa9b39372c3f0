/** The bytes in use at each entry of a device's history. */

import { actionOf, type Device, type FileData, type Usage } from "./model.ts";

/** Compute a device's usage from its events. All sums are exact below 2^53 bytes. */
export function usageOf(file: FileData, device: Device): Usage {
  const { events, blocks, others, segments } = device;
  const entries = events.count + 1;
  const allocated = new Float64Array(entries);
  const active = new Float64Array(entries);
  const reserved = new Float64Array(entries);
  for (let i = 0; i < blocks.count; i++) {
    const bytes = blocks.size_bytes[i]!;
    const begin = blocks.alloc_event[i]! + 1;
    allocated[begin]! += bytes;
    active[begin]! += bytes;
    const requested = blocks.free_requested_event[i]! + 1;
    const freed = blocks.free_event[i]! + 1;
    if (requested < entries) allocated[requested]! -= bytes;
    if (freed < entries) active[freed]! -= bytes;
  }
  for (let i = 0; i < segments.count; i++) reserved[0]! += segments.size_bytes[i]!;
  const sign = segmentSigns(file);
  let has_segments = segments.count > 0;
  for (let i = 0; i < events.count; i++) {
    const change = sign[events.action[i]!]!;
    if (!change) continue;
    has_segments = true;
    reserved[i + 1]! += change * (others.size_bytes[events.row[i]!] ?? 0);
  }
  for (const column of [allocated, active, reserved]) {
    for (let i = 1; i < entries; i++) column[i]! += column[i - 1]!;
  }
  return { allocated, active, reserved, has_segments: has_segments && !device.is_cpu && device.segments_are_known };
}

/** Return for each action 1 if it takes memory from the device, -1 if it gives it back, else 0. */
export function segmentSigns(file: FileData): Int8Array {
  const signs = new Int8Array(256);
  for (const [name, sign] of [
    ["segment_alloc", 1],
    ["segment_map", 1],
    ["segment_free", -1],
    ["segment_unmap", -1],
  ] as const) {
    const action = actionOf(file, name);
    if (action >= 0) signs[action] = sign;
  }
  return signs;
}
