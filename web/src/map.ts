/**
 * View 2, the memory map: every segment at the selected moment, with its blocks and holes.
 *
 * Only the visible rows are drawn, on a canvas that stays in place while the rows scroll. So the
 * cost of a frame depends on the size of the view, not on the number of segments.
 */

import { tooltipLines } from "./block_texts.ts";
import { colourOf, groupsOf } from "./colours.ts";
import { button } from "./elements.ts";
import { firstBlock, forEachHole, freeMemory, type Hole } from "./holes.ts";
import { drawMap, drawSample } from "./map_draw.ts";
import { addressAt, type MapRows, mapRows, pieceAt, pieceOf, ROW } from "./map_rows.ts";
import { drawShares, heightOf, partsOf, type Share, shareAt, sharesOf, shareTexts } from "./map_shares.ts";
import type { Layout, Model, Segment } from "./model.ts";
import { createScrubber } from "./scrubber.ts";
import type { Selection } from "./selection.ts";
import { address, counted, size } from "./text.ts";
import { createTooltip } from "./tooltip.ts";
import { drawWhenNeeded, element, prepare } from "./view.ts";

const STATES = [
  ["active", "in use"],
  ["pending", "freed, but a stream still uses it"],
  ["pinned", "free, but pinned: a block in its segment or page keeps it from being returned"],
  ["free", "free, can be returned to the device"],
] as const;
const MOST_MAGNIFICATION = 4096;

export function createMap(root: HTMLElement, model: Model, selection: Selection): void {
  const { device, file, layouts } = model;
  const { blocks } = device;
  const bar = element("div", { class: "toolbar" });
  root.append(bar);
  createScrubber(bar, model, selection);
  let magnification = 1;
  const magnify = (factor: number): void => {
    magnification = Math.max(1, Math.min(MOST_MAGNIFICATION, magnification * factor));
    request();
  };
  bar.append(
    element("span", { class: "buttons" }, "Zoom ",
      button("+", () => magnify(2), { "aria-label": "Zoom the map in" }),
      button("−", () => magnify(0.5), { "aria-label": "Zoom the map out" })),
  );
  const summary = element("p", { class: "summary" });
  const canvas = element("canvas", {});
  const spacer = element("div", { class: "map-rows" }, canvas);
  const box = element("div", {
    class: "map-box",
    tabindex: "0",
    role: "application",
    "aria-label":
      "Memory map. Left and right arrows go to another moment (with Shift by 100 events), up and down " +
      "arrows select the previous or next block in memory, plus and minus zoom.",
  }, spacer);
  const holder = element("div", { class: "map-holder" }, box);
  const tooltip = createTooltip(holder);
  const samples = STATES.map(([state, text]) => {
    const sample = element("canvas");
    return { state, sample, item: element("span", {}, sample, text) };
  });
  root.append(summary, holder, element("p", { class: "map-legend" }, ...samples.map(({ item }) => item)));

  let shares: Share[] = [];
  let rows: MapRows = { groups: [], height: 0 };
  let layout: Layout;
  // What the rows are of: most events change no segment.
  let arranged: { segments: readonly Segment[]; key: number[] } = { segments: [], key: [] };
  let pointer: { x: number; y: number } | null = null;
  let followed: number | null = null;

  function draw(): void {
    const { entry, block } = selection.state;
    const { colour } = selection;
    const width = Math.max(100, spacer.clientWidth);
    layout = layouts.at(entry);
    const height = box.clientHeight;
    const key = [width, height, magnification];
    if (layout.segments !== arranged.segments || String(key) !== String(arranged.key)) {
      shares = sharesOf(layout, file);
      rows = mapRows(layout, width, height, magnification, heightOf(shares));
      arranged = { segments: layout.segments, key };
    }
    spacer.style.height = `${rows.height}px`;
    // Another view has selected a block: show it.
    if (block !== null && block !== followed) {
      const piece = pieceOf(rows, blocks.address[block]!);
      if (piece && (piece.y < box.scrollTop || piece.y + ROW > box.scrollTop + height)) {
        box.scrollTop = piece.y - height / 2;
      }
    }
    followed = block;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const groups = groupsOf(model, colour);
    const context = prepare(canvas, width, height);
    const top = box.scrollTop;
    const drawing = { layout, rows, groups, blocks, file, block, top, width, height };
    drawMap(context, drawing);
    if (top < heightOf(shares)) drawShares(context, shares, drawing);
    for (const { state, sample } of samples) drawSample(sample, state);
    summarise();
    if (pointer) hover();
    else tooltip.hide();
  }

  function summarise(): void {
    const { entry } = selection.state;
    const { free_bytes, pinned_bytes, holes, largest_bytes } = freeMemory(layout, blocks);
    const event = entry - 1;
    const isOom = event >= 0 && file.actions[device.events.action[event]!] === "oom";
    const row = isOom ? device.events.row[event]! : 0;
    const asked = isOom && row < device.others.count ? device.others.size_bytes[row]! : 0;
    const failed = asked ? `The request of ${size(asked)} failed at this moment. ` : "";
    summary.textContent =
      `${failed}${size(free_bytes)} are free inside segments: ` +
      `${counted(holes, "hole")}, the largest ${size(largest_bytes)}. ` +
      `Blocks pin ${size(pinned_bytes)} of it (hatched).`;
    summary.classList.toggle("is-bad", isOom);
  }

  /** Return the block or the hole at a point of the map. */
  function at(x: number, y: number): { block: number } | { hole: Hole } | null {
    const piece = pieceAt(rows, x, y);
    if (!piece) return null;
    const wanted = addressAt(piece, x);
    const next = firstBlock(layout, blocks, wanted);
    // The block whose picture is at the point: it may be narrower than a pixel.
    const near = (piece.end - piece.begin) / (piece.right - piece.x);
    for (const i of [next - 1, next]) {
      const block = layout.blocks[i];
      if (block === undefined) continue;
      const begin = blocks.address[block]!;
      const end = begin + Math.max(near, blocks.size_bytes[block]!);
      if (begin <= wanted && wanted < end) return { block };
    }
    let found: Hole | null = null;
    forEachHole(layout, blocks, piece.segment, (hole) => {
      if (hole.begin <= wanted && wanted < hole.end) found = hole;
    });
    return found ? { hole: found } : null;
  }

  function hover(): void {
    const { x, y } = pointer!;
    const groups = groupsOf(model, selection.colour);
    const share = shareAt(shares, y + box.scrollTop);
    if (share) {
      return tooltip.show(x, y, shareTexts(share, partsOf(share, { layout, blocks, groups })), null);
    }
    const found = at(x, y + box.scrollTop);
    const piece = pieceAt(rows, x, y + box.scrollTop);
    if (!found || !piece) return tooltip.hide();
    const { segment } = piece;
    const inSegment = `in a segment of ${size(segment.size_bytes)} at ${address(device, segment.address)}`;
    if ("block" in found) {
      const colour = colourOf(groups.swatch[groups.of[found.block]!]!);
      return tooltip.show(x, y, [...tooltipLines(model, found.block), inSegment], colour);
    }
    const { begin, end, free } = found.hole;
    const returnable = free.end - free.begin;
    const lines = [`Hole of ${size(end - begin)}`, inSegment];
    lines.push(
      returnable === end - begin
        ? "The allocator can return it to the device."
        : returnable
          ? `${size(returnable)} of it can be returned to the device.`
          : "Pinned: the allocator cannot return it while a block is in this segment or page.",
    );
    tooltip.show(x, y, lines, null);
  }

  const request = drawWhenNeeded(root, selection, draw);
  box.addEventListener("scroll", request, { passive: true });
  canvas.addEventListener("mousemove", (event) => {
    pointer = { x: event.offsetX, y: event.offsetY };
    request();
  });
  canvas.addEventListener("mouseleave", () => {
    pointer = null;
    request();
  });
  canvas.addEventListener("click", (event) => {
    const share = shareAt(shares, event.offsetY + box.scrollTop);
    if (share) {
      const first = rows.groups.find(({ segments }) => segments[0] === share.segments[0]);
      box.scrollTop = first?.y ?? 0;
      return;
    }
    const found = at(event.offsetX, event.offsetY + box.scrollTop);
    followed = found && "block" in found ? found.block : null;
    selection.update({ block: followed });
  });
  box.addEventListener("keydown", (event) => {
    const { entry, block } = selection.state;
    const by = event.shiftKey ? 100 : 1;
    const go = (to: number): void =>
      selection.update({ entry: Math.max(0, Math.min(device.events.count, to)) });
    if (event.key === "ArrowRight") go(entry + by);
    else if (event.key === "ArrowLeft") go(entry - by);
    else if (event.key === "+" || event.key === "=") magnify(2);
    else if (event.key === "-") magnify(0.5);
    else if (event.key === "Escape") selection.update({ block: null });
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const step = event.key === "ArrowDown" ? 1 : -1;
      const now = block === null ? -1 : layout.blocks.indexOf(block);
      const next = now < 0 ? 0 : now + step;
      const chosen = layout.blocks[Math.max(0, Math.min(layout.blocks.length - 1, next))];
      if (chosen !== undefined) selection.update({ block: chosen });
    } else return;
    event.preventDefault();
  });
}
