/** Two files: their memory over time in one picture, and the difference by call site and module. */

import { button, plainTable, scrollRegion } from "./elements.ts";
import type { Change, Difference, Page } from "./model.ts";
import { picture, points, svg } from "./ranks.ts";
import { change, size } from "./text.ts";
import { element } from "./view.ts";

const MOST_ROWS = 200;

/** Show the difference of a page; nothing if it has none. */
export function createDifference(root: HTMLElement, page: Page): void {
  const { difference, files: [run, baseline] } = page;
  if (!difference) return;
  root.append(element("p", {}, difference.sentence));
  if (run && baseline) {
    const legend = ([["before", "Baseline", baseline], ["after", "This run", run]] as const).map(
      ([key, title, { name, peak_bytes, peak_reserved_bytes }]) => element("span", {},
        element("span", { class: `key ${key}` }), element("strong", {}, title),
        ` ${name}: peak ${size(peak_bytes)} allocated, ${size(peak_reserved_bytes)} reserved`));
    root.append(element("div", { class: "bar" }, ...legend));
  }
  if (difference.curves) root.append(overTime(difference.curves));
  for (const [what, rows] of [["Call site", difference.rows], ["Module", difference.modules]] as const) {
    if (rows.length === 0) continue;
    const sorted = sortedRows(rows);
    const list = scrollRegion(`Difference by ${what.toLowerCase()}`, differenceTable(what, sorted.slice(0, MOST_ROWS)));
    const all = button(`Show all ${rows.length} rows`, () => {
      list.replaceChildren(differenceTable(what, sorted));
      all.remove();
    });
    root.append(list, ...(rows.length > MOST_ROWS ? [all] : []));
  }
}

/** Return the rows by the size of the change, the largest first. */
export function sortedRows(rows: readonly Change[]): Change[] {
  const changed = ({ before_bytes, after_bytes }: Change): number => Math.abs(after_bytes - before_bytes);
  return [...rows].sort((a, b) => changed(b) - changed(a));
}

/** Return both curves on one scale; between them, what the run has more and what it has less. */
function overTime({ before, after, ends, largest }: NonNullable<Difference["curves"]>): HTMLElement {
  const top = Math.max(1, ...before, ...after);
  const drawn = picture();
  const lower = before.map((bytes, i) => Math.min(bytes, after[i]!));
  for (const [name, upper] of [["more", after], ["less", before]] as const) {
    const back = points(lower, top).split(" ").reverse().join(" ");
    drawn.append(svg("polygon", { class: `difference-${name}`, points: `${points(upper, top)} ${back}` }));
  }
  for (const [name, values] of [["before", before], ["after", after]] as const) {
    drawn.append(svg("polyline", { class: `difference-${name}`, points: points(values, top) }));
  }
  const most = largest.bytes
    ? `The largest difference: ${change(largest.bytes)} ${largest.where}.` : "No difference over time.";
  return element("figure", { class: "over-time" }, element("figcaption", {},
    element("strong", {}, `Allocated memory, up to ${size(top)}. `), most), drawn,
    element("div", { class: "ends" }, ...ends.map((end) => element("span", {}, end))));
}

function differenceTable(what: string, rows: readonly Change[]): HTMLElement {
  const most = Math.max(1, ...rows.map((row) => Math.abs(row.after_bytes - row.before_bytes)));
  const header = ["Before", "After", "Change", "% or ×", "Less | more", what];
  return plainTable(`By ${what.toLowerCase()}, the largest change first`, header, rows.map((row) => {
    const bytes = row.after_bytes - row.before_bytes;
    const bar = element("span", { class: bytes > 0 ? "more" : "less" });
    bar.style.width = `${(100 * Math.abs(bytes)) / most}%`;
    return [
      size(row.before_bytes), size(row.after_bytes), change(bytes), row.share,
      element("div", { class: "difference-bar", "aria-hidden": "true" }, bar), row.name,
    ];
  }), new Set([0, 1, 2, 3]));
}
