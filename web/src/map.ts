import type { Model } from "./model.ts";
import type { Selection } from "./selection.ts";

export function createMap(root: HTMLElement, _model: Model, _selection: Selection): void {
  root.textContent = "map";
}
