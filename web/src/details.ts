/** The column next to the views: the selected moment, its memory by group, and the selected block. */

import { groupsAt } from "./areas.ts";
import { blockFacts, momentText } from "./block_text.ts";
import { colourOf, groupsOf } from "./colours.ts";
import { type Model, stepAt } from "./model.ts";
import type { Selection } from "./selection.ts";
import { count, counted, duration, eventNumber, size, stackLines } from "./text.ts";
import { button } from "./timeline_tools.ts";
import { drawWhenNeeded, element } from "./view.ts";

export function createDetails(root: HTMLElement, model: Model, selection: Selection): void {
  const moment = element("section", { "aria-label": "Selected moment" });
  const groups = element("section", { "aria-label": "Memory by group at the selected moment" });
  const block = element("section", { "aria-label": "Selected block" });
  root.append(moment, groups, block);
  drawWhenNeeded(root, selection, () => {
    showMoment(moment, model, selection.state.entry);
    showGroups(groups, model, selection);
  });
  const show = (): void => showBlock(block, model, selection);
  selection.subscribe((state, previous) => {
    if (state.block !== previous.block) show();
  });
  show();
}

function showMoment(root: HTMLElement, { file, device, usage }: Model, entry: number): void {
  const event = entry - 1;
  const { events } = device;
  const step = event >= 0 ? stepAt(device, event) : null;
  const pending = usage.active[entry]! - usage.allocated[entry]!;
  const free = usage.reserved[entry]! - usage.active[entry]!;
  const limit = device.capacity_bytes;
  const isBound = entry < device.exact_from;
  const rows: [string, string][] = [
    [
      "Moment",
      event < 0
        ? "before the first event"
        : `after event ${eventNumber(device, event)} (${file.actions[events.action[event]!]})`,
    ],
  ];
  if (event >= 0 && device.has_times) {
    rows.push(["Time", `${duration(events.time_us[event]! - events.time_us[0]!)} after the first event`]);
  }
  if (step) rows.push(["Step", count(step[0])]);
  if (event >= 0) rows.push(["Phase", file.phases[events.phase[event]!] || "none"]);
  rows.push(["Allocated", (isBound ? "at least " : "") + size(usage.allocated[entry]!)]);
  if (pending) rows.push(["Waiting for a stream", size(pending)]);
  if (usage.has_segments) {
    rows.push(["Reserved", size(usage.reserved[entry]!)]);
    rows.push(["Free in segments", (isBound ? "at most " : "") + size(free)]);
  }
  if (limit !== null) rows.push(["Device limit", size(limit)]);
  root.replaceChildren(element("h2", {}, "Selected moment"), facts(rows));
}

function showGroups(root: HTMLElement, model: Model, selection: Selection): void {
  const { colour, entry } = selection.state;
  const groups = groupsOf(model, colour);
  const { bytes, counts } = groupsAt(model.device.blocks, groups, entry);
  const table = element("table", { class: "groups" });
  const total = bytes.reduce((sum, value) => sum + value, 0) || 1;
  // The order of the layers, uppermost first.
  for (let group = groups.names.length - 1; group >= 0; group--) {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = colourOf(groups.swatch[group]!);
    const name = element("td", { class: "name" }, swatch, groups.names[group]!);
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
  const label = { category: "category", site: "call site", phase: "phase", step: "step", age: "age" };
  root.replaceChildren(element("h2", {}, `Allocated, by ${label[colour]}`), table);
}

function showBlock(root: HTMLElement, model: Model, selection: Selection): void {
  const { block } = selection.state;
  const { device, file } = model;
  if (block === null || block >= device.blocks.count) {
    root.replaceChildren(
      element("h2", {}, "Selected block"),
      element("p", { class: "hint" }, "None. Click a block in the timeline, the map or a table."),
    );
    return;
  }
  const { alloc_event, free_requested_event, stack } = device.blocks;
  const buttons = element("p", { class: "buttons" }, "Go to ");
  const [born, freed] = [alloc_event[block]!, free_requested_event[block]!];
  if (born >= 0) {
    buttons.append(
      button("Allocation", momentText(device, born), () => selection.update({ entry: born + 1 })),
    );
  }
  if (freed < device.events.count) {
    buttons.append(
      button("Free", momentText(device, freed), () => selection.update({ entry: Math.max(0, freed) })),
    );
  }
  buttons.append(button("Clear", "Select no block", () => selection.update({ block: null })));
  const lines = stackLines(file, stack[block]!);
  const frames = element("ol", { class: "stack" });
  for (const text of lines.length ? lines : ["The call stack is not known."]) {
    frames.append(element("li", {}, text));
  }
  root.replaceChildren(
    element("h2", {}, "Selected block"),
    facts(blockFacts(model, block)),
    buttons,
    element("h3", {}, "Call stack, innermost frame first"),
    frames,
  );
}

/** Return names and values as a description list. */
function facts(rows: [string, string][]): HTMLElement {
  const list = element("dl", { class: "facts" });
  for (const [name, value] of rows) {
    list.append(element("dt", {}, name), element("dd", {}, value));
  }
  return list;
}
