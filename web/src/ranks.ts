import type { Page } from "./model.ts";
import type { Selection } from "./selection.ts";

export function createRanks(root: HTMLElement, _page: Page, _selection: Selection): void {
  root.textContent = "ranks";
}
