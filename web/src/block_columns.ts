/** The columns of the table of blocks, and how its rows are filtered. */

import {
  ageText, allocatedText, blockSize, categoryText, freedText, lifeText, ownerOf, stateText,
} from "./block_texts.ts";
import { ALLOCATED, isUnreleased, lifeInSteps, stateAt } from "./lives.ts";
import type { Model } from "./model.ts";
import type { FilterSource, TextColumn } from "./row_filter.ts";
import { stacksWith, textsOfNumbers } from "./search.ts";
import type { State } from "./selection.ts";
import { ranks } from "./sort.ts";
import type { Column } from "./table.ts";
import { address, addressBase, count, siteText, size } from "./text.ts";

/** The values of `state:` in a filter, by the numbers that `stateAt` returns. */
const STATES = ["future", "allocated", "pending", "freed"];
/** The value of `state:` for blocks that a range of time allocated and did not release. */
export const UNRELEASED = "unreleased";

/** Return the columns; `entry` returns the selected moment. */
export function blockColumns(model: Model, entry: () => number): Column[] {
  const { file, device } = model;
  const { blocks, steps, events } = device;
  const byCategory = ranks(file.categories);
  const byName = ranks(file.strings);
  const bySite = ranks(file.sites);
  // What decides comes first: on a narrow screen, the columns to the right are out of view.
  const columns: Column[] = [
    {
      id: "id", title: "Block", width: 6, isNumber: true,
      hint: "The number of the block, in order of allocation; of a call site, how many it has.",
      text: (block) => count(block), value: (block) => block,
    }, {
      id: "size", title: "Size", width: 6.5, isNumber: true,
      hint: "The size that the allocator gave the block.",
      text: (block) => blockSize(model, block), value: (block) => blocks.size_bytes[block]!,
    }, {
      id: "category", title: "Category", width: 9.5, isNumber: false,
      hint: "What the block is for.",
      text: (block) => categoryText(model, block),
      value: (block) => byCategory[file.kinds[blocks.kind[block]!]![0]]!,
    }, {
      id: "site", title: "Call site", width: 16, grows: true, isNumber: false,
      hint: "The line of the program that allocated the block. Select a block to see its stack.",
      text: (block) => siteText(file, blocks.stack[block]!),
      value: (block) => bySite[file.stacks.site[blocks.stack[block]!]!]!,
    }, {
      id: "owner", title: "Owner or holder", width: 13, isNumber: false,
      hint: "The name of the largest tensor in the block, or else what keeps it, if it is known.",
      text: (block) => file.strings[ownerOf(model, block)]!,
      value: (block) => byName[ownerOf(model, block)]!,
    }, {
      id: "age", title: "Age", width: 7, isNumber: true,
      hint: "How long before the selected moment the block was allocated.",
      text: (block) => ageText(model, block, entry()),
      value: (block) => (stateAt(blocks, block, entry()) === ALLOCATED
        ? entry() - blocks.alloc_event[block]! : NaN),
    }, {
      id: "stream", title: "Stream", width: 5, isNumber: true, hint: "The stream, by number.",
      text: (block) => String(blocks.stream[block]!), value: (block) => blocks.stream[block]!,
    }, {
      id: "state", title: "State", width: 9, isNumber: false,
      hint: "The state at the selected moment.",
      text: (block) => stateText(model, block, entry()),
      value: (block) => stateAt(blocks, block, entry()),
    }, {
      id: "life", title: "Life in steps", width: 8, isNumber: true,
      hint: "How many steps the block lived. 0: allocated and freed in the same step.",
      text: (block) => lifeText(model, block),
      value: (block) => lifeInSteps(blocks, block, steps, events.count)?.steps ?? NaN,
    }, {
      id: "allocated", title: "Allocated by event", width: 12, isNumber: true,
      hint: "The event of the allocation, and its time since the first event.",
      text: (block) => allocatedText(model, block), value: (block) => blocks.alloc_event[block]!,
    }, {
      id: "freed", title: "Freed by event", width: 12, isNumber: true,
      hint: "The event by which the program freed the block, and its time since the first event.",
      text: (block) => freedText(model, block),
      value: (block) => blocks.free_requested_event[block]!,
    }, {
      id: "requested", title: "Requested", width: 7, isNumber: true,
      hint: "The size that the program requested.",
      text: (block) => size(blocks.requested_bytes[block]!),
      value: (block) => blocks.requested_bytes[block]!,
    }, {
      id: "address", title: "Address", width: 9.6, isNumber: false, hint: "",
      text: (block) => address(device, blocks.address[block]!),
      value: (block) => blocks.address[block]!,
    },
  ];
  return columns.filter((column) => column.id !== "life" || steps.length > 0);
}

/** Return what filters read of the blocks, at a state of the selection. */
export function blockSource({ file, device }: Model, state: Readonly<State>): FilterSource {
  const { blocks } = device;
  const { entry, range } = state;
  const category: TextColumn = {
    texts: file.categories,
    index: (block) => file.kinds[blocks.kind[block]!]![0],
  };
  const phase: TextColumn = { texts: file.phases, index: (block) => blocks.phase[block]! };
  const owner: TextColumn = { texts: file.strings, index: (block) => blocks.owner[block]! };
  const holder: TextColumn = { texts: file.strings, index: (block) => blocks.holder[block]! };
  const inRange: TextColumn = {
    texts: ["", UNRELEASED],
    index: (block) => (range && isUnreleased(blocks, block, range[0], range[1]) ? 1 : 0),
  };
  const atEntry: TextColumn = { texts: STATES, index: (block) => stateAt(blocks, block, entry) };
  return {
    count: blocks.count,
    addressBase: addressBase(device),
    address: (block) => blocks.address[block]!,
    sizeBytes: (block) => blocks.size_bytes[block]!,
    stack: (block) => blocks.stack[block]!,
    stacksWith: (word) => stacksWith(file, word),
    columns: {
      category: () => category,
      phase: () => phase,
      state: (value) => (value === UNRELEASED ? inRange : atEntry),
      stream: () => textsOfNumbers(blocks.count, (block) => blocks.stream[block]!),
    },
    searched: [category, phase, owner, holder],
  };
}
