/** The table of all blocks, and what a range of time left behind. */

import { blockColumns, blockSource, UNRELEASED } from "./block_columns.ts";
import { afterPause } from "./elements.ts";
import { createFilterBar } from "./filter_bar.ts";
import { parseFilter, valueOf } from "./filter_terms.ts";
import type { Model } from "./model.ts";
import { createRange } from "./range.ts";
import { filterRows } from "./row_filter.ts";
import type { Selection } from "./selection.ts";
import { createTable } from "./table.ts";
import { count, counted, size } from "./text.ts";
import { element } from "./view.ts";

/** While time is scrubbed, rows are filtered and sorted again only when it rests. */
const REST_MS = 150;

/** Show the blocks of a model. */
export function createBlocksTable(root: HTMLElement, model: Model, selection: Selection): void {
  const { device, file } = model;
  const { blocks } = device;
  if (device.contradiction !== null) {
    root.append(element("p", {}, device.contradiction));
    return;
  }
  createRange(root, model, selection);
  const showResult = createFilterBar(root, selection, [
    { key: "state", label: "Show", options: [
      ["", "all blocks"],
      ["allocated", "allocated at this moment"],
      ["pending", "waiting for a stream at this moment"],
      [UNRELEASED, "not released of the range"],
    ] },
    { key: "category", label: "Category", options: [
      ["", "any"], ...file.categories.map((name) => [name, name] as const),
    ] },
  ], "train.py  weight  0x7f3a…  size>=1MiB");
  const columns = blockColumns(model, () => selection.state.entry);
  const table = createTable(root, "Blocks", columns, (block) =>
    selection.update({ block, entry: Math.max(blocks.alloc_event[block]! + 1, 0) }));

  function filter(): void {
    const { terms, error } = parseFilter(selection.state.filter);
    const { rows, unknownKeys } = filterRows(blockSource(model, selection.state), terms);
    table.show(rows);
    let bytes = 0;
    for (const row of rows) bytes += blocks.size_bytes[row]!;
    const notes = unknownKeys.map((key) => `Blocks have no "${key}". This term is ignored.`);
    if (valueOf(selection.state.filter, "state") === UNRELEASED && !selection.state.range) {
      notes.push("No range is selected. Drag over the timeline to select one.");
    }
    showResult(
      `${count(rows.length)} of ${counted(blocks.count, "block")}, ${size(bytes)} in total`,
      [error, ...notes].filter(Boolean).join(" "));
  }
  const filterLater = afterPause(filter, REST_MS);
  const sortLater = afterPause(() => table.refresh(true), REST_MS);
  let isStale = false; // of a hidden table, which is filtered when it is shown
  selection.subscribe((state, previous) => {
    const isMoved = state.entry !== previous.entry || state.range !== previous.range;
    const hasState = valueOf(state.filter, "state") !== "";
    isStale ||= state.filter !== previous.filter || (isMoved && hasState);
    if (state.tab !== "blocks") return;
    if (isStale && isMoved) filterLater();
    else if (isStale) filter();
    else if (isMoved && table.isSortedBy("state")) sortLater();
    isStale = false;
    table.refresh(false);
    table.select(state.block);
  });
  filter();
  table.select(selection.state.block);
}
