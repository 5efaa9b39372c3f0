/** The top of the page: the answer first, then what was left out, and what is open. */

import { button, menu } from "./elements.ts";
import { KEYS } from "./keys.ts";
import type { FileData, FileEntry, Page } from "./model.ts";
import { opening, type Selection } from "./selection.ts";
import { shortName, size } from "./text.ts";
import { createVerdict } from "./verdict.ts";
import { element } from "./view.ts";

/** Show the verdict, what is left out, and the pickers of the file and the device. */
export function createHeader(
  root: HTMLElement, page: Page, selection: Selection, file: FileData | null,
): void {
  const help = helpDialog();
  const tools = element("div", { class: "page-title" },
    // The names of two files are below: the heading needs the room.
    ...(page.difference ? [] : [element("span", { class: "faint" }, page.title)]),
    ...pickers(page, selection, file),
    button("Keys and terms", () => help.showModal()));
  root.append(createVerdict(page, selection, file, tools), help);
  const entry = page.files[selection.state.file];
  if (entry?.data === null) {
    root.append(element("p", { role: "alert" }, `This page does not have the events of ${entry.name}.`));
  }
}

function pickers(page: Page, selection: Selection, file: FileData | null): HTMLElement[] {
  const found: HTMLElement[] = [];
  const { state } = selection;
  if (page.files.length > 1) {
    const options = page.files.map((entry, index) => [String(index), fileLabel(entry)] as const);
    found.push(menu("File", options, String(state.file), (value) =>
      selection.update(opening(state, { file: Number(value) }))).root);
  }
  if (file && file.devices.length > 1) {
    const options = file.devices.map((device, index) => [String(index), device.name] as const);
    found.push(menu("Device", options, String(state.device), (value) =>
      selection.update(opening(state, { file: state.file, device: Number(value) }))).root);
  }
  return found;
}

function fileLabel({ name, rank, peak_bytes, ooms, data }: FileEntry): string {
  const parts = [rank === null ? shortName(name, 18) : `rank ${rank}`, `peak ${size(peak_bytes)}`];
  if (ooms > 0) parts.push("out of memory");
  if (data === null) parts.push("events left out");
  return parts.join(", ");
}

function helpDialog(): HTMLDialogElement {
  const dialog = element("dialog", { "aria-label": "Keys and terms" });
  const list = (rows: readonly (readonly [string, string])[], isKey: boolean): HTMLElement =>
    element("div", { class: "keys" }, ...rows.flatMap(([name, meaning]) =>
      [element("span", {}, element(isKey ? "kbd" : "code", {}, name)), element("span", {}, meaning)]));
  dialog.append(
    element("h2", {}, "Keys"), list(KEYS, true),
    element("h2", {}, "Search terms"),
    element("p", {}, "All terms of a search must hold. Put a text with spaces in quotes."),
    list(TERMS, false),
    button("Close", () => dialog.close()));
  return dialog;
}

const TERMS = [
  ["attention.py", "a part of a file, a function, a tensor's name, a category or a phase"],
  ["0x7f3a0200", "blocks at or around an address, and events of it"],
  ["size>=1MiB", "a size; also >, < and <="],
  ["category:activation", "a column's value; also state:, action:, phase: and stream:"],
] as const;
