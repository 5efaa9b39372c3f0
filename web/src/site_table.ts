/** The call sites that hold some blocks, as a table. */

import { plainTable } from "./elements.ts";
import { sumBlocks, type BlockSums } from "./lives.ts";
import type { Blocks, FileData } from "./model.ts";
import { count, size } from "./text.ts";

const MOST_SITES = 200;

/** Add blocks up by call site: the groups are indices in `FileData.sites`. */
export function sumBySite(file: FileData, blocks: Blocks, rows: Uint32Array): BlockSums {
  return sumBlocks(rows, blocks.size_bytes, (block) => file.stacks.site[blocks.stack[block]!]!);
}

/** Return the table of the largest call sites. */
export function siteTable(file: FileData, { groups, bytes }: BlockSums): HTMLTableElement {
  const caption = groups.length > MOST_SITES
    ? `By call site: the largest ${MOST_SITES} of ${count(groups.length)}`
    : "By call site";
  const rows = groups.slice(0, MOST_SITES).map((group) => [
    size(group.bytes), `${((100 * group.bytes) / bytes).toFixed(1)} %`, count(group.count),
    file.sites[group.group]!,
  ]);
  return plainTable(caption, ["Bytes", "Share", "Blocks", "Call site"], rows, new Set([0, 1, 2]));
}
