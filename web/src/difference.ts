/** Two files side by side, with the difference by call site. */

import { button, plainTable, scrollRegion } from "./elements.ts";
import type { Difference, FileEntry, Page } from "./model.ts";
import { curveOf } from "./ranks.ts";
import type { Selection } from "./selection.ts";
import { change, size } from "./text.ts";
import { element } from "./view.ts";

const MOST_ROWS = 200;

/** Show the difference of a page; nothing if it has none. */
export function createDifference(root: HTMLElement, page: Page, _selection: Selection): void {
  const { difference, files: [run, baseline] } = page;
  if (!difference) return;
  root.append(element("p", {}, difference.sentence));
  if (run && baseline) {
    const top = Math.max(1, ...[run, baseline].map((entry) =>
      Math.max(entry.peak_bytes, entry.peak_reserved_bytes)));
    root.append(element("div", { class: "sides" },
      side("Before (baseline)", baseline, top), side("After (this run)", run, top)));
  }
  const rows = sortedRows(difference);
  const list = scrollRegion("Difference by call site");
  const all = button(`Show all ${rows.length} call sites`, () => {
    list.replaceChildren(differenceTable(rows));
    all.remove();
  });
  list.append(differenceTable(rows.slice(0, MOST_ROWS)));
  root.append(list, ...(rows.length > MOST_ROWS ? [all] : []));
}

type Row = Difference["rows"][number];

/** Return the rows by the size of the change, the largest first. */
export function sortedRows({ rows }: Difference): Row[] {
  const changed = ({ before_bytes, after_bytes }: Row): number => Math.abs(after_bytes - before_bytes);
  return [...rows].sort((a, b) => changed(b) - changed(a));
}

function side(title: string, entry: FileEntry, top: number): HTMLElement {
  const picture = curveOf(entry, top);
  picture.style.cssText = "width: 100%; height: 90px";
  return element("figure", {},
    element("figcaption", {}, element("strong", {}, title), ` ${entry.name}: peak ` +
      `${size(entry.peak_bytes)} allocated, ${size(entry.peak_reserved_bytes)} reserved`),
    picture);
}

function differenceTable(rows: readonly Row[]): HTMLElement {
  const most = Math.max(1, ...rows.map((row) => Math.abs(row.after_bytes - row.before_bytes)));
  const hasCategory = rows.some((row) => row.category);
  const category = hasCategory ? ["Category"] : [];
  const header = ["Before", "After", "Change", "Less | more", ...category, "Call site"];
  return plainTable("By call site, the largest change first", header, rows.map((row) => {
    const bytes = row.after_bytes - row.before_bytes;
    const bar = element("span", { class: bytes > 0 ? "more" : "less" });
    bar.style.width = `${(100 * Math.abs(bytes)) / most}%`;
    return [
      size(row.before_bytes), size(row.after_bytes), change(bytes),
      element("div", { class: "difference-bar", "aria-hidden": "true" }, bar),
      ...(hasCategory ? [row.category ?? ""] : []), row.site,
    ];
  }), new Set([0, 1, 2]));
}
