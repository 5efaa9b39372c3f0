/** Several files as small curves with one scale; a click opens a file. */

import { button } from "./elements.ts";
import type { FileEntry, Page } from "./model.ts";
import { opening, type Selection } from "./selection.ts";
import { counted, size } from "./text.ts";
import { element } from "./view.ts";

const WIDTH = 300;
const HEIGHT = 60;

/** Show the files of a page. */
export function createRanks(root: HTMLElement, page: Page, selection: Selection): void {
  const top = Math.max(1, ...page.files.map(({ peak_reserved_bytes, peak_bytes }) =>
    Math.max(peak_reserved_bytes, peak_bytes)));
  const items = page.files.map((entry, index) =>
    element("li", {}, fileButton(entry, index, top, selection)));
  root.append(
    element("p", { class: "faint" },
      `${counted(page.files.length, "file")}, all on a scale up to ${size(top)}. Filled area: allocated. ` +
      "Dashed line: reserved. Dotted line: capacity of the device. Click a file to open it."),
    element("ul", { class: "ranks" }, ...items));
}

function fileButton(
  entry: FileEntry, index: number, top: number, selection: Selection,
): HTMLButtonElement {
  const { name, rank, peak_bytes, peak_reserved_bytes, verdict, ooms, data } = entry;
  const { state } = selection;
  const open = button("", () => selection.update(opening(state, { file: index })));
  open.className = "rank";
  open.setAttribute("aria-pressed", String(index === state.file));
  open.disabled = data === null;
  const notes = [`Peak: ${size(peak_bytes)} allocated, ${size(peak_reserved_bytes)} reserved`];
  if (ooms > 0) notes.push(`Out of memory ${ooms === 1 ? "once" : `${ooms} times`}`);
  if (data === null) notes.push("The events are not on this page.");
  open.append(
    element("span", { class: "name" }, rank === null ? name : `Rank ${rank}: ${name}`),
    curveOf(entry, top),
    ...notes.map((note) => element("span", {}, note)),
    element("span", { class: "faint" }, verdict));
  return open;
}

/** Return an empty picture for curves. */
export function picture(): SVGSVGElement {
  return svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true",
  });
}

function y(bytes: number, top: number): string {
  return (HEIGHT - (HEIGHT * Math.min(bytes, top)) / top).toFixed(2);
}

/** Return the points of a curve over the width of a picture, up to `top` bytes. */
export function points(values: readonly number[], top: number): string {
  return values.map((bytes, i) =>
    `${((WIDTH * i) / Math.max(values.length - 1, 1)).toFixed(2)},${y(bytes, top)}`).join(" ");
}

/** Return the curve of a file as a picture, up to `top` bytes. */
function curveOf({ curve, capacity_bytes }: FileEntry, top: number): SVGSVGElement {
  const drawn = picture();
  const { allocated, reserved } = curve;
  drawn.append(
    svg("polygon", {
      class: "curve-allocated", points: `0,${HEIGHT} ${points(allocated, top)} ${WIDTH},${HEIGHT}` }),
    svg("polyline", { class: "curve-reserved", points: points(reserved, top) }));
  // A capacity at an out-of-memory can be less than what was reserved at another moment.
  if (capacity_bytes !== null && capacity_bytes <= top && capacity_bytes >= Math.max(0, ...reserved)) {
    const at = y(capacity_bytes, top);
    drawn.append(svg("line", { class: "curve-capacity", x1: "0", x2: String(WIDTH), y1: at, y2: at }));
  }
  return drawn;
}

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K, attributes: Record<string, string>,
): SVGElementTagNameMap[K] {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
