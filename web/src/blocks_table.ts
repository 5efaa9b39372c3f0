/** The table of all blocks, and what a range of time left behind. */

import { blockColumns, blockSource, UNRELEASED } from "./block_columns.ts";
import { colourOf, groupsOf } from "./colours.ts";
import { afterPause, checkbox } from "./elements.ts";
import { createFilterBar } from "./filter_bar.ts";
import { parseFilter, valueOf } from "./filter_terms.ts";
import { ALLOCATED, stateAt } from "./lives.ts";
import type { Model } from "./model.ts";
import { filterRows } from "./row_filter.ts";
import type { Selection } from "./selection.ts";
import { sortRows } from "./sort.ts";
import { type Column, createTable } from "./table.ts";
import { count, counted, rangeText, size } from "./text.ts";
import { element } from "./view.ts";

/** While time is scrubbed, rows are filtered, grouped and sorted again only when it rests. */
const REST_MS = 150;

/** The value of `state:` in a filter for all blocks; without one, those that are allocated. */
const ALL = "all";
/** So many of a call site's largest blocks decide what is written of it: all would take long. */
const MOST_COMPARED = 10_000;

/** The blocks of one call site: the largest first. */
interface Group {
  blocks: number[];
  bytes: number;
  /** By column: a block with the value that has the most bytes, and whether it is the only value. */
  main: Map<string, { block: number; isOnly: boolean }>;
}

/** Show the blocks of a model. */
export function createBlocksTable(root: HTMLElement, model: Model, selection: Selection): void {
  const { device, file } = model;
  const { blocks } = device;
  if (device.contradiction !== null) {
    root.append(element("p", {}, device.contradiction));
    return;
  }
  const showResult = createFilterBar(root, selection, [
    { key: "state", label: "Show", options: [
      ["", "allocated, or in the range"],
      [ALL, "all blocks"],
      ["pending", "waiting for a stream at this moment"],
      [UNRELEASED, "unreleased in the range"],
    ] },
    { key: "category", label: "Category", options: [
      ["", "any"], ...file.categories.map((name) => [name, name] as const),
    ] },
  ], "train.py  size>=1MiB");
  let isGrouped = true;
  root.querySelector(".filter [role=status]")!.before(
    checkbox("Group by call site", isGrouped, (isChecked) => {
      isGrouped = isChecked;
      filter();
    }));
  const columns = blockColumns(model, () => selection.state.entry);
  // A row from `blocks.count` on is a call site: its number, and below it its blocks if it is open.
  const siteOf = (block: number): number => file.stacks.site[blocks.stack[block]!]!;
  const groups = new Map<number, Group>();
  const open = new Set<number>();
  let found: Uint32Array = new Uint32Array(0);
  const table = createTable(root, {
    label: "Blocks",
    columns: columns.map((column) => ofGroups(column)),
    onOpen(row) {
      if (row >= blocks.count) {
        if (!open.delete(row)) open.add(row);
        return show(true);
      }
      const isThere = stateAt(blocks, row, selection.state.entry) === ALLOCATED;
      selection.update(isThere ? { block: row }
        : { block: row, entry: Math.max(blocks.alloc_event[row]! + 1, 0) });
    },
    expanded: (rows, keys) => (!isGrouped || open.size === 0 ? rows
      : Uint32Array.from([...rows].flatMap((row) =>
        (open.has(row) ? [row, ...sortRows(Uint32Array.from(groups.get(row)!.blocks), keys)] : [row])))),
    colour(row) {
      const { of, swatch } = groupsOf(model, selection.colour);
      const group = groups.get(row);
      const block = group ? mainOf(group, selection.colour, (one) => of[one]!).block : row;
      return colourOf(swatch[of[block]!]!);
    },
  });

  /** Return a column that also has the texts and the values of call sites. */
  function ofGroups(column: Column): Column {
    const { id, text, value } = column;
    const texts: Partial<Record<string, (group: Group, row: number) => string>> = {
      id: (group, row) => `${open.has(row) ? "▾" : "▸"} ${count(group.blocks.length)}`,
      size: (group) => size(group.bytes),
    };
    const values: Partial<Record<string, (group: Group) => number>> = {
      id: (group) => group.blocks.length,
      size: (group) => group.bytes,
    };
    // Of the others, a call site has the text of most of its bytes, and says if there are others.
    const common = (group: Group): string => {
      const { block, isOnly } = mainOf(group, id, value);
      return isOnly ? text(block) : `${text(block)} …`;
    };
    return {
      ...column,
      text: (row) => (row < blocks.count ? text(row)
        : (texts[id] ?? common)(groups.get(row)!, row)),
      value: (row) => (row < blocks.count ? value(row)
        : values[id] ? values[id](groups.get(row)!)
          : value(mainOf(groups.get(row)!, id, value).block)),
    };
  }

  function mainOf(group: Group, id: string, value: (block: number) => number): {
    block: number; isOnly: boolean;
  } {
    let main = group.main.get(id);
    if (main) return main;
    const bytes = new Map<number, number>();
    let block = group.blocks[0]!;
    for (const one of group.blocks.slice(0, MOST_COMPARED)) {
      const sum = (bytes.get(value(one)) ?? 0) + blocks.size_bytes[one]!;
      bytes.set(value(one), sum);
      if (sum > bytes.get(value(block))!) block = one;
    }
    main = { block, isOnly: bytes.size === 1 && group.blocks.length <= MOST_COMPARED };
    group.main.set(id, main);
    return main;
  }

  function filter(isKept = false): void {
    const { filter, range } = selection.state;
    const { terms, error } = parseFilter(filter);
    let state = valueOf(filter, "state");
    const wanted = terms.filter((term) => !(term.kind === "value" && term.value === ALL));
    // An address may be that of a block that is gone.
    if (state === "" && !terms.some(({ kind }) => kind === "address")) {
      state = range ? UNRELEASED : "allocated";
      wanted.unshift({ kind: "value", key: "state", value: state });
    }
    const { rows, unknownKeys } = filterRows(blockSource(model, selection.state), wanted);
    found = rows;
    show(isKept);
    let bytes = 0;
    for (const row of rows) bytes += blocks.size_bytes[row]!;
    const notes = unknownKeys.map((key) => `Blocks have no "${key}". This search term is ignored.`);
    let text = `${count(rows.length)} of ${counted(blocks.count, "block")}, ${size(bytes)} in total`;
    if (state === UNRELEASED) {
      if (range) text += `, allocated and not released ${rangeText(device, range)}`;
      else notes.push("No range is selected. Drag over the timeline to select one.");
    }
    showResult(text,
      [error, ...notes].filter(Boolean).join(" "));
  }

  /** Show the blocks that fit, by call site if they are grouped: the largest first. */
  function show(isKept: boolean): void {
    if (!isGrouped) return table.show(found, isKept);
    groups.clear();
    const bySize = { value: (block: number) => blocks.size_bytes[block]!, descending: true };
    for (const block of sortRows(found, [bySize])) {
      const row = blocks.count + siteOf(block);
      let group = groups.get(row);
      if (!group) groups.set(row, (group = { blocks: [], bytes: 0, main: new Map() }));
      group.blocks.push(block);
      group.bytes += blocks.size_bytes[block]!;
    }
    const rows = [...groups.keys()].sort((a, b) => groups.get(b)!.bytes - groups.get(a)!.bytes);
    table.show(Uint32Array.from(rows), isKept);
  }

  /** Mark the selected block, in its call site, which is opened. */
  function select(block: number | null): void {
    const group = block === null ? -1 : blocks.count + siteOf(block);
    if (isGrouped && groups.get(group)?.blocks.includes(block!) && !open.has(group)) {
      open.add(group);
      show(true);
    }
    table.select(block);
  }

  const filterLater = afterPause(() => filter(true), REST_MS);
  let isStale = false; // of a hidden table, which is filtered when it is shown
  selection.subscribe((state, previous) => {
    const isMoved = state.entry !== previous.entry || state.range !== previous.range;
    isStale ||= state.filter !== previous.filter || isMoved;
    if (state.tab !== "blocks") return;
    if (isMoved) filterLater();
    else if (isStale) filter();
    isStale = false;
    table.refresh();
    if (state.block !== previous.block) select(state.block);
  });
  filter();
  select(selection.state.block);
}
