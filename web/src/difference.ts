import type { Page } from "./model.ts";
import type { Selection } from "./selection.ts";

export function createDifference(root: HTMLElement, _page: Page, _selection: Selection): void {
  root.textContent = "difference";
}
