import type { Model } from "./model.ts";
import type { Selection } from "./selection.ts";

export function createBlocksTable(root: HTMLElement, _model: Model, _selection: Selection): void {
  root.textContent = "blocks_table";
}
