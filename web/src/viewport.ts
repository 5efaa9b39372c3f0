/**
 * The rows of a long list that are in view.
 *
 * Browsers limit an element's height, Firefox to 17.8 million pixels. A longer list gets a lower
 * height, and its rows move faster than the scroll bar.
 */

const MOST_PIXELS = 16_000_000;

export interface Viewport {
  /** The number of rows of the list. */
  count: number;
  rowHeight: number;
  /** The height of the part in view, in pixels. */
  height: number;
}

/** Return the height of the list's element in pixels. */
export function listHeight({ count, rowHeight }: Viewport): number {
  return Math.min(count * rowHeight, MOST_PIXELS);
}

/** Return how many pixels of rows are above the part in view. */
function hiddenPixels(viewport: Viewport, scrollTop: number): number {
  const total = viewport.count * viewport.rowHeight;
  const room = listHeight(viewport) - viewport.height;
  if (room <= 0) return 0;
  return (Math.min(scrollTop, room) / room) * (total - viewport.height);
}

/** The rows to draw: `first` to `last - 1`; the first one is `top` pixels below the list's top. */
export interface VisibleRows {
  first: number;
  last: number;
  top: number;
}

/** Return the rows in view. */
export function visibleRows(viewport: Viewport, scrollTop: number): VisibleRows {
  const hidden = hiddenPixels(viewport, scrollTop);
  const first = Math.max(Math.floor(hidden / viewport.rowHeight), 0);
  const last = Math.ceil((hidden + viewport.height) / viewport.rowHeight);
  const top = first * viewport.rowHeight - hidden + scrollTop;
  return { first, last: Math.min(last, viewport.count), top };
}

/** Return the scroll position that has a row in view, as close to `scrollTop` as possible. */
export function scrollToRow(viewport: Viewport, scrollTop: number, row: number): number {
  const { rowHeight, height } = viewport;
  const room = listHeight(viewport) - height;
  const total = viewport.count * rowHeight;
  if (room <= 0) return scrollTop;
  const hidden = hiddenPixels(viewport, scrollTop);
  let wanted = hidden;
  if (row * rowHeight < hidden) wanted = row * rowHeight;
  else if ((row + 1) * rowHeight > hidden + height) wanted = (row + 1) * rowHeight - height;
  return wanted === hidden ? scrollTop : (wanted / (total - height)) * room;
}
