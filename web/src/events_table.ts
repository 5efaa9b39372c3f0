/** The table of all events, with the usage after each. */

import { createFilterBar } from "./filter_bar.ts";
import { parseFilter } from "./filter_terms.ts";
import { actionOf, UNKNOWN_ROW, type Model } from "./model.ts";
import { filterRows, type FilterSource, type TextColumn } from "./row_filter.ts";
import { stacksWith, textsOfNumbers } from "./search.ts";
import type { Selection } from "./selection.ts";
import { ranks } from "./sort.ts";
import { createTable, type Column } from "./table.ts";
import { address, addressBase, count, counted, duration, eventNumber, siteText, size } from "./text.ts";

/** A file may have 65,535 phases; those that the menu lacks are found by `phase:`. */
const MOST_PHASES = 200;

/** Show the events of a model. */
export function createEventsTable(root: HTMLElement, model: Model, selection: Selection): void {
  const { device, file } = model;
  const { events } = device;
  const rowsOf = eventRows(model);
  const used = new Set(events.action);
  const showResult = createFilterBar(root, selection, [
    { key: "action", label: "Action", options: [
      ["", "any"],
      ...file.actions.filter((_, i) => used.has(i)).map((name) => [name, name] as const),
    ] },
    ...(file.phases.length > 1 ? [{ key: "phase", label: "Phase", options: [
      ["", "any"] as const,
      ...file.phases.slice(1, MOST_PHASES).map((name) => [name, name] as const),
    ] }] : []),
  ], "train.py  size>=1MiB");
  const table = createTable(root, {
    label: "Events",
    columns: eventColumns(model, rowsOf),
    onOpen: (event) => {
      const block = rowsOf.block(event);
      selection.update({ entry: event + 1, ...(block === null ? {} : { block }) });
    },
  });
  const source = eventSource(model, rowsOf);

  function filter(): void {
    const { terms, error } = parseFilter(selection.state.filter);
    const { rows, unknownKeys } = filterRows(source, terms);
    table.show(rows);
    const notes = unknownKeys.map((key) => `Events have no "${key}". This search term is ignored.`);
    showResult(
      `${count(rows.length)} of ${counted(events.count, "event")}`,
      [error, ...notes].filter(Boolean).join(" "));
  }
  let isStale = false; // of a hidden table, which is filtered when it is shown
  selection.subscribe((state, previous) => {
    isStale ||= state.filter !== previous.filter;
    if (state.tab !== "events") return;
    if (isStale) filter();
    isStale = false;
    table.select(state.entry > 0 ? state.entry - 1 : null);
  });
  filter();
  table.select(selection.state.entry > 0 ? selection.state.entry - 1 : null);
}

/** Where the values of an event are: those of allocations and frees are in their blocks. */
export interface EventRows {
  /** The block of an allocation or a free; null for other events. */
  block: (event: number) => number | null;
  address: (event: number) => number;
  sizeBytes: (event: number) => number;
  stream: (event: number) => number;
}

/** Return where the values of a model's events are. */
export function eventRows({ file, device }: Model): EventRows {
  const { events, blocks, others } = device;
  const isOfBlock = new Uint8Array(256);
  for (const name of ["alloc", "free_requested", "free_completed"]) {
    const action = actionOf(file, name);
    if (action >= 0) isOfBlock[action] = 1;
  }
  const oom = actionOf(file, "oom"); // its address is the free memory of the device
  const read = (event: number, ofBlocks: Float64Array, ofOthers: Float64Array): number => {
    const row = events.row[event]!;
    if (row === UNKNOWN_ROW) return NaN;
    return (isOfBlock[events.action[event]!] ? ofBlocks[row] : ofOthers[row]) ?? NaN;
  };
  return {
    block: (event) =>
      isOfBlock[events.action[event]!] && events.row[event] !== UNKNOWN_ROW ? events.row[event]! : null,
    address: (event) =>
      events.action[event] === oom ? NaN : read(event, blocks.address, others.address),
    sizeBytes: (event) => read(event, blocks.requested_bytes, others.size_bytes),
    stream: (event) => read(event, blocks.stream, others.stream),
  };
}

function eventColumns({ file, device, usage }: Model, rows: EventRows): Column[] {
  const { events } = device;
  const byAction = ranks(file.actions);
  const byPhase = ranks(file.phases);
  const bySite = ranks(file.sites);
  const known = (value: number, text: (value: number) => string): string =>
    Number.isNaN(value) ? "" : text(value);
  const columns: Column[] = [
    {
      id: "id", title: "Event", width: 6, isNumber: true,
      hint: "The number of the event, in order of time.",
      text: (event) => eventNumber(device, event), value: (event) => event,
    }, {
      id: "time", title: "Time", width: 6.5, isNumber: true,
      hint: "The time since the first event.",
      text: (event) => duration(events.time_us[event]! - events.time_us[0]!),
      value: (event) => events.time_us[event]!,
    }, {
      id: "action", title: "Action", width: 10, isNumber: false,
      hint: "What the program or the allocator did.",
      text: (event) => file.actions[events.action[event]!]!,
      value: (event) => byAction[events.action[event]!]!,
    }, {
      id: "size", title: "Size", width: 6.5, isNumber: true,
      hint: "The requested bytes of an allocation, a free or an out-of-memory error; the bytes of a segment.",
      text: (event) => known(rows.sizeBytes(event), size), value: rows.sizeBytes,
    }, {
      id: "allocated", title: "Allocated after", width: 9.5, isNumber: true,
      hint: "The bytes that the program holds after the event.",
      text: (event) => size(usage.allocated[event + 1]!),
      value: (event) => usage.allocated[event + 1]!,
    }, {
      id: "reserved", title: "Reserved after", width: 9.5, isNumber: true,
      hint: "The bytes that the allocator holds after the event.",
      text: (event) => size(usage.reserved[event + 1]!),
      value: (event) => usage.reserved[event + 1]!,
    }, {
      id: "site", title: "Call site", width: 18, grows: true, isNumber: false,
      hint: "The line of the program that caused the event.",
      text: (event) => siteText(file, events.stack[event]!),
      value: (event) => bySite[file.stacks.site[events.stack[event]!]!]!,
    }, {
      id: "phase", title: "Phase", width: 9, isNumber: false,
      hint: "The phase of the program that the event is in.",
      text: (event) => file.phases[events.phase[event]!]!,
      value: (event) => byPhase[events.phase[event]!]!,
    }, {
      id: "address", title: "Address", width: 9.6, isNumber: false, hint: "",
      text: (event) => known(rows.address(event), (value) => address(device, value)),
      value: rows.address,
    }, {
      id: "stream", title: "Stream", width: 5, isNumber: true, hint: "The stream, by number.",
      text: (event) => known(rows.stream(event), String), value: rows.stream,
    },
  ];
  const hidden = new Set<string>();
  if (!device.has_times) hidden.add("time");
  if (device.contradiction !== null) hidden.add("allocated").add("reserved");
  if (!usage.has_segments) hidden.add("reserved");
  return columns.filter(({ id }) => !hidden.has(id));
}

/** Return what filters read of the events. */
export function eventSource({ file, device }: Model, rows: EventRows): FilterSource {
  const { events } = device;
  const action: TextColumn = { texts: file.actions, index: (event) => events.action[event]! };
  const phase: TextColumn = { texts: file.phases, index: (event) => events.phase[event]! };
  return {
    count: events.count,
    addressBase: addressBase(device),
    address: rows.address,
    sizeBytes: rows.sizeBytes,
    stack: (event) => events.stack[event]!,
    stacksWith: (word) => stacksWith(file, word),
    columns: {
      action: () => action,
      phase: () => phase,
      stream: () => textsOfNumbers(events.count, rows.stream),
    },
    searched: [action, phase],
  };
}
