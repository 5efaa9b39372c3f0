/** Drawing of the memory map: blocks, holes, and the names of groups of segments. */

import { colourOf, type Groups, ink, NEUTRAL } from "./colours.ts";
import { firstBlock, forEachHole, type Hole } from "./holes.ts";
import { type MapRows, type Piece, ROW } from "./map_rows.ts";
import type { Blocks, FileData, Layout, Segment } from "./model.ts";
import { counted, shortName, size } from "./text.ts";
import { prepare } from "./view.ts";

/** The height of a segment in its row. */
export const BAR = ROW - 4;

export interface MapDrawing {
  layout: Layout;
  rows: MapRows;
  groups: Groups;
  blocks: Blocks;
  file: FileData;
  /** The selected block. */
  block: number | null;
  /** The part that is visible: from `top` on, `height` pixels. */
  top: number;
  width: number;
  height: number;
}

/** Return the stream and the pool of a segment as text. */
export function placeName({ pools }: Pick<FileData, "pools">, { pool, stream }: Segment): string {
  const id = pools[pool];
  const isDefault = !id || (id[0] === 0 && id[1] === 0);
  return `stream ${stream}${isDefault ? "" : `, private pool ${id.join(",")}`}`;
}

/** Return a text, with its middle cut out where it is wider than there is room. */
export function fitting(context: CanvasRenderingContext2D, text: string, room: number): string {
  const { width } = context.measureText(text);
  return width <= room ? text : shortName(text, Math.max(3, Math.floor((text.length * room) / width) - 1));
}

/** Draw the visible part of the map. The context is moved by what is hidden above. */
export function drawMap(context: CanvasRenderingContext2D, drawing: MapDrawing): void {
  const { rows, top, height, file } = drawing;
  const patterns = makePatterns(context);
  context.translate(0, -top);
  context.textBaseline = "middle";
  for (const group of rows.groups) {
    if (group.y > top + height) break;
    const last = group.pieces[group.pieces.length - 1]!;
    if (last.y + ROW < top) continue;
    const first = group.segments[0]!;
    context.font = "600 12px system-ui, sans-serif";
    context.fillStyle = ink().text;
    const name =
      `${first.is_small ? "Small blocks (up to 1 MiB)" : "Large blocks"}, ${placeName(file, first)}` +
      (first.is_expandable ? ", expandable" : "");
    const short = fitting(context, name, drawing.width);
    context.fillText(short, 0, group.y + 11);
    const at = context.measureText(short).width + 10;
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = ink().faint;
    const row = size(group.bytes_per_pixel * drawing.width);
    // The most that fits: on a phone, the bytes alone.
    const segments = `${counted(group.segments.length, "segment")}, ${size(group.bytes)}`;
    const room = drawing.width - at;
    const text = [`${segments}; one row is ${row}`, segments, size(group.bytes)].find((each) =>
      context.measureText(each).width <= room);
    if (text) context.fillText(text, at, group.y + 11);
    context.font = "11px system-ui, sans-serif";
    for (const piece of group.pieces) {
      if (piece.y + ROW < top || piece.y > top + height) continue;
      drawPiece(context, drawing, piece, patterns);
    }
  }
}

function drawPiece(
  context: CanvasRenderingContext2D,
  drawing: MapDrawing,
  piece: Piece,
  patterns: Patterns,
): void {
  const { layout, blocks, groups } = drawing;
  const colours = ink();
  const scale = (piece.right - piece.x) / (piece.end - piece.begin);
  const x = (address: number): number =>
    piece.x + (Math.min(piece.end, Math.max(piece.begin, address)) - piece.begin) * scale;
  context.fillStyle = colours.hole;
  context.fillRect(piece.x, piece.y, piece.right - piece.x, BAR);

  // Pixels that are drawn already are not drawn again: a pixel may stand for thousands of blocks.
  let drawn = -1;
  const begin = Math.max(0, firstBlock(layout, blocks, piece.begin) - 1);
  for (let i = begin; i < layout.blocks.length; i++) {
    const block = layout.blocks[i]!;
    const address = blocks.address[block]!;
    if (address >= piece.end) break;
    const end = address + blocks.size_bytes[block]!;
    if (end <= piece.begin) continue;
    const [left, right] = [x(address), x(end)];
    if (right < drawn + 0.4) continue;
    drawn = right;
    const width = Math.max(0.8, right - left);
    const isPending = blocks.free_requested_event[block]! < layout.entry;
    context.fillStyle = colourOf(groups.swatch[groups.of[block]!]!);
    context.globalAlpha = isPending ? 0.45 : 1;
    context.fillRect(left, piece.y, width, BAR);
    context.globalAlpha = 1;
    if (isPending) fillPattern(context, patterns.pending, left, piece.y, width);
    if (width > 3) {
      context.fillStyle = colours.paper;
      context.fillRect(right - 0.7, piece.y, 0.7, BAR);
    }
    if (width > 44) label(context, size(blocks.size_bytes[block]!), left, right, piece.y, true);
    if (block === drawing.block) {
      context.strokeStyle = colours.select;
      context.lineWidth = 3;
      context.strokeRect(left - 1, piece.y - 1, width + 2, BAR + 2);
    }
  }
  const holes: Hole[] = [];
  forEachHole(layout, blocks, piece.segment, (hole) => {
    if (hole.end <= piece.begin || hole.begin >= piece.end) return;
    const [left, right] = [x(hole.begin), x(hole.end)];
    if (right - left < 0.8) return;
    fillPattern(context, patterns.pinned, left, piece.y, right - left);
    holes.push(hole);
  });
  context.strokeStyle = colours.faint;
  context.lineWidth = 1;
  context.strokeRect(piece.x + 0.5, piece.y + 0.5, Math.max(2, piece.right - piece.x - 1), BAR - 1);
  // After the outline of the segment, which is solid where memory cannot be returned.
  for (const { begin, end, free } of holes) {
    const [from, to] = [x(free.begin), x(free.end)];
    if (to - from >= 0.8) strokeFree(context, from, piece.y, to - from);
    const [left, right] = [x(begin), x(end)];
    if (right - left > 44) label(context, size(end - begin), left, right, piece.y, false);
  }
}

/** Draw memory that can be returned to the device. */
export function strokeFree(context: CanvasRenderingContext2D, x: number, y: number, width: number): void {
  context.fillStyle = ink().paper;
  context.fillRect(x, y, width, BAR);
  context.strokeStyle = ink().faint;
  context.lineWidth = 1;
  context.setLineDash([3, 3]);
  context.strokeRect(x + 0.5, y + 0.5, Math.max(1, width - 1), BAR - 1);
  context.setLineDash([]);
}

/** Write a size into a block or a hole, on a ground that keeps it readable. */
function label(
  context: CanvasRenderingContext2D,
  text: string,
  left: number,
  right: number,
  y: number,
  isBlock: boolean,
): void {
  const width = context.measureText(text).width;
  if (width + 8 > right - left) return;
  const x = (left + right - width) / 2;
  context.fillStyle = ink().paper;
  context.globalAlpha = isBlock ? 0.72 : 0.9;
  context.fillRect(x - 2, y + 3, width + 4, BAR - 6);
  context.globalAlpha = 1;
  context.fillStyle = ink().text;
  context.fillText(text, x, y + BAR / 2 + 0.5);
}

export interface Patterns {
  pinned: CanvasPattern;
  pending: CanvasPattern;
}

export function makePatterns(context: CanvasRenderingContext2D): Patterns {
  return {
    pinned: context.createPattern(tile(ink().alarm, ink().hole, false), "repeat")!,
    pending: context.createPattern(tile(ink().text, null, true), "repeat")!,
  };
}

const tiles = new Map<string, HTMLCanvasElement>();

/** Return a tile with one diagonal, or with two that cross. */
function tile(stroke: string, ground: string | null, isCrossed: boolean): HTMLCanvasElement {
  const key = [stroke, ground, isCrossed].join();
  let made = tiles.get(key);
  if (made) return made;
  made = document.createElement("canvas");
  made.width = made.height = 7;
  const context = made.getContext("2d")!;
  if (ground) {
    context.fillStyle = ground;
    context.fillRect(0, 0, 7, 7);
  }
  context.strokeStyle = stroke;
  context.globalAlpha = ground ? 0.75 : 0.6;
  context.lineWidth = 1.1;
  context.beginPath();
  for (const shift of [-7, 0, 7]) {
    context.moveTo(shift - 1, 8);
    context.lineTo(shift + 8, -1);
    if (!isCrossed) continue;
    context.moveTo(shift - 1, -1);
    context.lineTo(shift + 8, 8);
  }
  context.stroke();
  tiles.set(key, made);
  return made;
}

export function fillPattern(
  context: CanvasRenderingContext2D,
  pattern: CanvasPattern,
  x: number,
  y: number,
  width: number,
): void {
  context.fillStyle = pattern;
  context.fillRect(x, y, width, BAR);
}

/** The size of the samples of the legend. */
const SAMPLE = 28;

/** Draw the sample of a state for the legend, as the map draws memory in this state. */
export function drawSample(canvas: HTMLCanvasElement, state: string): void {
  Object.assign(canvas.style, { width: `${SAMPLE}px`, height: `${BAR}px` });
  const context = prepare(canvas, SAMPLE, BAR);
  if (state === "free") return strokeFree(context, 0, 0, SAMPLE);
  const patterns = makePatterns(context);
  if (state === "active" || state === "pending") {
    context.globalAlpha = state === "active" ? 1 : 0.45;
    context.fillStyle = colourOf(NEUTRAL); // the colour of no block
    context.fillRect(0, 0, SAMPLE, BAR);
    context.globalAlpha = 1;
  }
  if (state === "pending") fillPattern(context, patterns.pending, 0, 0, SAMPLE);
  if (state === "pinned") fillPattern(context, patterns.pinned, 0, 0, SAMPLE);
  context.strokeStyle = ink().faint;
  context.strokeRect(0.5, 0.5, SAMPLE - 1, BAR - 1);
}
