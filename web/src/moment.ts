/** The column next to the views: the selected moment, and its memory by group. */

import { groupsAt } from "./areas.ts";
import { colourOf, groupsOf } from "./colours.ts";
import { factList } from "./elements.ts";
import { type Model, stepAt } from "./model.ts";
import { colourName, type Selection } from "./selection.ts";
import { count, counted, duration, momentText, shortName, size } from "./text.ts";
import { drawWhenNeeded, element } from "./view.ts";

/** Show the selected moment, and the memory of each group at this moment: the legend of colours. */
export function createMoment(root: HTMLElement, model: Model, selection: Selection): void {
  const moment = element("section", { class: "panel", "aria-label": "Selected moment" });
  const groups = element("section", { class: "panel", "aria-label": "Memory by group" });
  root.append(groups, moment);
  drawWhenNeeded(root, selection, () => {
    showMoment(moment, model, selection.state.entry);
    showGroups(groups, model, selection);
  });
}

/** What an action means. */
const ACTION_TEXTS: Readonly<Record<string, string>> = {
  alloc: "a block was allocated",
  free_requested: "the program freed a block",
  free_completed: "a freed block became reusable",
  segment_alloc: "a segment was reserved",
  segment_free: "a segment was returned",
  segment_map: "pages were mapped",
  segment_unmap: "pages were unmapped",
  oom: "out of memory",
  snapshot: "a snapshot was taken",
};

function showMoment(root: HTMLElement, { file, device, usage }: Model, entry: number): void {
  const event = entry - 1;
  const { events } = device;
  const step = event >= 0 ? stepAt(device, event) : null;
  const pending = usage.active[entry]! - usage.allocated[entry]!;
  const free = usage.reserved[entry]! - usage.active[entry]!;
  const limit = device.capacity_bytes;
  const isBound = entry < device.exact_from;
  const rows: [string, string][] = [["Moment", momentText(device, entry)]];
  if (event >= 0) {
    const action = file.actions[events.action[event]!]!;
    rows.push(["Event", ACTION_TEXTS[action] ?? action]);
  }
  if (event >= 0 && device.has_times) {
    rows.push(["Time", duration(events.time_us[event]! - events.time_us[0]!)]);
  }
  if (step) rows.push(["Step", count(step[0])]);
  if (event >= 0) rows.push(["Phase", file.phases[events.phase[event]!] || "none"]);
  rows.push(["Allocated", (isBound ? "at least " : "") + size(usage.allocated[entry]!)]);
  if (pending) rows.push(["Waiting for a stream", size(pending)]);
  if (usage.has_segments) {
    rows.push(["Reserved", size(usage.reserved[entry]!)]);
    rows.push(["Free in segments", (isBound ? "at most " : "") + size(free)]);
  }
  const isKnown = device.capacity_until === null || entry < device.capacity_until;
  if (limit !== null && isKnown && usage.reserved[entry]! <= limit) {
    const name = device.capacity_until === null ? "Device limit" : "The limit when memory ran out";
    rows.push([name, size(limit)]);
  }
  root.replaceChildren(element("h2", {}, "Selected moment"), factList(rows));
}

function showGroups(root: HTMLElement, model: Model, selection: Selection): void {
  const { entry } = selection.state;
  const { colour } = selection;
  const groups = groupsOf(model, colour);
  const { bytes, counts } = groupsAt(model.device.blocks, groups, entry, model.layouts.at(entry).blocks);
  const table = element("table", { class: "groups" });
  const letters = Math.max(16, Math.floor((root.clientWidth - 155) / 7.2));
  const total = bytes.reduce((sum, value) => sum + value, 0) || 1;
  // The largest first; steps and ages in the order of the layers.
  const order = [...groups.names.keys()].reverse();
  if (colour !== "step" && colour !== "age") order.sort((a, b) => bytes[b]! - bytes[a]!);
  for (const group of order) {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = colourOf(groups.swatch[group]!);
    const name = element("td", { class: "name" }, swatch, shortName(groups.names[group]!, letters));
    name.title = `${groups.names[group]!}: ${counted(counts[group]!, "block")}`;
    table.append(
      element(
        "tr",
        bytes[group] ? {} : { class: "empty" },
        name,
        element("td", { class: "number" }, size(bytes[group]!)),
        element("td", { class: "number" }, `${Math.round((100 * bytes[group]!) / total)} %`),
      ),
    );
  }
  root.replaceChildren(element("h2", {}, `Allocated, by ${colourName(colour)}`), table);
}
