import type { FileData, Page } from "./model.ts";
import type { Selection } from "./selection.ts";

export function createHeader(root: HTMLElement, _page: Page, _selection: Selection, _file: FileData | null): void {
  root.textContent = "header";
}
