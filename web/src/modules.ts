/** The modules of the selected moment: which of them has the active bytes, and what for. */

import { createIcicle } from "./icicle.ts";
import type { FlameNode } from "./flame_tree.ts";
import { ModuleTrees } from "./module_tree.ts";
import type { Model } from "./model.ts";
import type { Selection } from "./selection.ts";
import { count, counted, size } from "./text.ts";

/** What is as many values as a model has, of 4 bytes or of 2. */
const OF_PARAMETERS = new Set(["parameter", "gradient", "optimizer state", "buffer"]);

/** Show the modules of a model. */
export function createModules(root: HTMLElement, model: Model, selection: Selection): void {
  const trees = new ModuleTrees(model.file, model.device.blocks);
  const nameOf = ({ frame }: FlameNode): string => trees.names[frame]!;
  createIcicle(root, model, selection, {
    label: "Modules",
    by: "by module and category",
    example: "module or category",
    options: [],
    key: () => "",
    tree: (active, groupOf) => trees.tree(active, groupOf),
    nameOf: (node) => node.times > 1 ? `${nameOf(node)} (${node.times} ×)` : nameOf(node),
    shortText: (node) => node.times > 1
      ? `${nameOf(node)}  ${node.times} × ${size(node.bytes / node.times)} = ${size(node.bytes)}`
      : `${nameOf(node)}  ${size(node.bytes)}`,
    figures: (node) => figures(node, OF_PARAMETERS.has(nameOf(node)) && node.children.length === 0),
  });
}

/** Return what the program requested, as figures that can be compared with a model's. */
function figures({ requested, times, count: blocks }: FlameNode, isOfParameters: boolean): string {
  const each = requested / times;
  const bytes = counted(each, "byte");
  const text = `. Requested: ${times > 1 ? `${times} × ${bytes}` : bytes} in ${counted(blocks, "block")}`;
  if (!isOfParameters || each % 4 !== 0) return text;
  return `${text}${times > 1 ? ", each" : ","} ${count(each / 4)} values of 4 bytes, or ${count(each / 2)} of 2 bytes`;
}
