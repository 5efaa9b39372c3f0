import type { Model } from "./model.ts";
import type { Selection } from "./selection.ts";

export function createEventsTable(root: HTMLElement, _model: Model, _selection: Selection): void {
  root.textContent = "events_table";
}
