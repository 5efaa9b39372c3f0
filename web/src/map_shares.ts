/** Above the segments of the map: one row for each stream and pool, with what of it is in use. */

import { colourOf, ink, NEUTRAL } from "./colours.ts";
import { firstBlock, endOf, forEachHole } from "./holes.ts";
import { BAR, fillPattern, fitting, makePatterns, type MapDrawing, placeName, strokeFree } from "./map_draw.ts";
import { HEADING, ROW } from "./map_rows.ts";
import type { FileData, Layout, Segment } from "./model.ts";
import { counted, size } from "./text.ts";

/** The most rows; the smallest others share one. */
const MOST_ROWS = 12;

/** The segments of a stream and pool. */
export interface Share {
  name: string;
  segments: Segment[];
  bytes: number;
}

/** What a row's bytes are: those allocated in each group, and the rest. */
export interface Parts {
  groups: Float64Array;
  pending: number;
  pinned: number;
  free: number;
}

/** Return the streams and pools of a layout, the largest first; none if there is only one. */
export function sharesOf({ segments }: Layout, file: FileData): Share[] {
  const found = new Map<string, Share>();
  for (const segment of segments) {
    const name = placeName(file, segment);
    let share = found.get(name);
    if (!share) found.set(name, (share = { name, segments: [], bytes: 0 }));
    share.segments.push(segment);
    share.bytes += segment.size_bytes;
  }
  const shares = [...found.values()].sort((a, b) => b.bytes - a.bytes);
  const others = shares.splice(MOST_ROWS);
  if (others.length > 0) {
    const all = others.flatMap((share) => share.segments);
    const bytes = others.reduce((sum, share) => sum + share.bytes, 0);
    shares.push({ name: `${others.length} others`, segments: all, bytes });
  }
  return shares.length > 1 ? shares : [];
}

/** Return the height of the rows. */
export function heightOf(shares: readonly Share[]): number {
  return shares.length > 0 ? HEADING + shares.length * ROW + 4 : 0;
}

/** Return the row at a y of the map. */
export function shareAt(shares: readonly Share[], y: number): Share | undefined {
  return y < HEADING ? undefined : shares[Math.floor((y - HEADING) / ROW)];
}

/** Return what the bytes of a row are. */
export function partsOf(
  { segments }: Share, { layout, blocks, groups }: Pick<MapDrawing, "layout" | "blocks" | "groups">,
): Parts {
  const parts = { groups: new Float64Array(groups.names.length), pending: 0, pinned: 0, free: 0 };
  for (const segment of segments) {
    for (let i = firstBlock(layout, blocks, segment.address); i < layout.blocks.length; i++) {
      const block = layout.blocks[i]!;
      if (blocks.address[block]! >= endOf(segment)) break;
      const bytes = blocks.size_bytes[block]!;
      if (blocks.free_requested_event[block]! < layout.entry) parts.pending += bytes;
      else parts.groups[groups.of[block]!]! += bytes;
    }
    forEachHole(layout, blocks, segment, ({ begin, end, free }) => {
      parts.free += free.end - free.begin;
      parts.pinned += end - begin - (free.end - free.begin);
    });
  }
  return parts;
}

/** Return a row in words. */
export function shareTexts({ name, segments, bytes }: Share, { groups, pending, pinned, free }: Parts): string[] {
  return [
    `${name}: ${size(bytes)} in ${counted(segments.length, "segment")}`,
    `${size(groups.reduce((sum, each) => sum + each, 0))} in use`,
    ...(pending ? [`${size(pending)} freed, but a stream still uses it`] : []),
    `${size(pinned + free)} free${pinned ? `, of which blocks pin ${size(pinned)}` : ""}`,
  ];
}

/** Draw the rows, with one scale, into a context that is moved by what is hidden above. */
export function drawShares(
  context: CanvasRenderingContext2D, shares: readonly Share[], drawing: MapDrawing,
): void {
  const patterns = makePatterns(context);
  const { groups, width } = drawing;
  const texts = shares.map((share) => {
    const parts = partsOf(share, drawing);
    const free = parts.pinned + parts.free;
    return { share, parts, figures: `${size(share.bytes)}, ${free ? size(free) : "nothing"} free` };
  });
  context.font = "600 12px system-ui, sans-serif";
  context.fillStyle = ink().text;
  context.fillText("Streams and pools", 0, 11);
  context.font = "12px system-ui, sans-serif";
  const widest = (of: readonly string[]): number =>
    Math.max(...of.map((text) => context.measureText(text).width));
  const left = Math.min(widest(shares.map(({ name }) => name)) + 10, 0.45 * width);
  const room = width - left - widest(texts.map(({ figures }) => figures)) - 10;
  const scale = Math.max(20, room) / shares[0]!.bytes;
  for (const [row, { share, parts, figures }] of texts.entries()) {
    const y = HEADING + row * ROW;
    context.fillStyle = ink().text;
    context.fillText(fitting(context, share.name, left - 6), 0, y + BAR / 2);
    let x = left;
    const add = (bytes: number, draw: (x: number, width: number) => void): void => {
      if (bytes * scale >= 0.5) draw(x, bytes * scale);
      x += bytes * scale;
    };
    const fill = (swatch: number) => (from: number, wide: number): void => {
      context.fillStyle = colourOf(swatch);
      context.fillRect(from, y, wide, BAR);
    };
    for (const [group, bytes] of parts.groups.entries()) add(bytes, fill(groups.swatch[group]!));
    add(parts.pending, (from, wide) => {
      context.globalAlpha = 0.45;
      fill(NEUTRAL)(from, wide);
      context.globalAlpha = 1;
      fillPattern(context, patterns.pending, from, y, wide);
    });
    add(parts.pinned, (from, wide) => fillPattern(context, patterns.pinned, from, y, wide));
    context.strokeStyle = ink().faint;
    context.strokeRect(left + 0.5, y + 0.5, Math.max(1, x - left - 1), BAR - 1);
    add(parts.free, (from, wide) => strokeFree(context, from, y, wide));
    context.fillStyle = ink().faint;
    context.fillText(figures, x + 8, y + BAR / 2);
  }
}
