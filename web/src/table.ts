/**
 * A table that holds only the rows in view as elements, so that a million rows scroll.
 *
 * The table is a grid for assistive software: it announces the numbers of all rows, the sort order
 * of its columns and the row at the cursor. The header sorts by several columns: a click (or Enter)
 * sorts by a column alone, with Shift it adds the column.
 */

import { type SortKey, sortRows } from "./sort.ts";
import { shortName } from "./text.ts";
import { listHeight, scrollToRow, visibleRows, type Viewport } from "./viewport.ts";
import { element, oncePerFrame } from "./view.ts";

export interface Column {
  id: string;
  title: string;
  /** What the column means: shown as a tooltip. */
  hint: string;
  /** The least width in rem; the column that grows takes the rest of the table's width. */
  width: number;
  grows?: boolean;
  isNumber: boolean;
  text: (row: number) => string;
  /** The number to sort by; NaN is unknown and comes last. */
  value: (row: number) => number;
}

export interface Table {
  /**
   * Show other rows, in their order unless the user sorted by a column; from the top, unless the
   * place in the table is kept.
   */
  show: (rows: Uint32Array, isKept?: boolean) => void;
  /** Write the visible rows again, because their texts have changed. */
  refresh: () => void;
  /** Mark a row as the selected one and scroll to it; null: none. */
  select: (row: number | null) => void;
}

const ROW_HEIGHT = 24;
const PAGE_ROWS = 20;
/** A text of a hostile file may have millions of letters, which would make scrolling slow. */
const MOST_LETTERS = 400;

interface Sort {
  column: Column;
  descending: boolean;
}

let tables = 0;

export interface TableOptions {
  /** The table's name for assistive software. */
  label: string;
  columns: readonly Column[];
  /** Called with the row that the user clicked, or chose with Enter. */
  onOpen: (row: number) => void;
  /** Put the rows of open groups between sorted rows, by the same keys. */
  expanded?: (rows: Uint32Array, keys: readonly SortKey[]) => Uint32Array;
  /** The colour of a row in the other views. */
  colour?: (row: number) => string;
}

/** Make a table. */
export function createTable(
  root: HTMLElement, { label, columns, onOpen, expanded, colour }: TableOptions,
): Table {
  const prefix = `table-${++tables}`;
  let given: Uint32Array = new Uint32Array(0);
  let shown = given;
  let sorts: Sort[] = [];
  let cursor = 0;
  let letters = MOST_LETTERS; // of the column that grows
  let selected: number | null = null;
  let wantsSelectedInView = false;

  const headers = columns.map((column) => header(column));
  const head = element("div", { role: "row", class: "table-row table-head", "aria-rowindex": "1" },
    ...headers.map(({ cell }) => cell));
  const body = element("div", { role: "rowgroup", class: "table-body" });
  const empty = element("p", { class: "table-empty", hidden: "" },
    "No row fits the filter. Remove a term from the filter to see more rows.");
  const grid = element("div", {
    role: "grid", class: "table", tabindex: "0", "aria-label": label,
    "aria-colcount": String(columns.length), "aria-multiselectable": "false",
  }, element("div", { role: "rowgroup", class: "table-header" }, head), body);
  const tracks = columns.map(({ width, grows }) => (grows ? `minmax(${width}rem, 1fr)` : `${width}rem`));
  grid.style.setProperty("--columns", tracks.join(" "));
  grid.style.setProperty("--row-width", `${columns.reduce((sum, { width }) => sum + width, 0)}rem`);
  root.append(grid, empty);

  const draw = oncePerFrame(drawNow);
  grid.addEventListener("scroll", draw, { passive: true });
  grid.addEventListener("keydown", onKey);
  body.addEventListener("click", (event) => {
    const line = (event.target as Element).closest<HTMLElement>("[data-index]");
    if (line) open(Number(line.dataset.index));
  });
  new ResizeObserver(draw).observe(grid);

  function header(column: Column): { cell: HTMLElement; sorter: HTMLElement; mark: HTMLElement } {
    const mark = element("span", { class: "sort-mark", "aria-hidden": "true" });
    const sorter = element("button", {
      type: "button", title: `${column.hint} Click: sort. Shift-click: add to the sort.`,
      tabindex: column === columns[0] ? "0" : "-1",
    }, column.title, mark);
    sorter.addEventListener("click", (event) => sortBy(column, event.shiftKey));
    const cell = element("div", {
      role: "columnheader", class: column.isNumber ? "number" : "", "data-column": column.id,
    }, sorter);
    return { cell, sorter, mark };
  }

  function sortBy(column: Column, isAdded: boolean): void {
    const before = sorts.find((sort) => sort.column === column);
    const first = column.isNumber; // of numbers, people look for the largest
    if (before && before.descending !== first) sorts = sorts.filter((sort) => sort !== before);
    else if (before) before.descending = !before.descending;
    else if (isAdded) sorts.push({ column, descending: first });
    else sorts = [{ column, descending: first }];
    if (!isAdded) sorts = sorts.filter((sort) => sort.column === column);
    for (const [i, { cell, mark }] of headers.entries()) {
      const place = sorts.findIndex((sort) => sort.column === columns[i]);
      const sort = sorts[place];
      mark.textContent = sort ? `${sort.descending ? "▼" : "▲"}${sorts.length > 1 ? place + 1 : ""}` : "";
      if (sort) cell.setAttribute("aria-sort", sort.descending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    order();
  }

  function order(): void {
    const keys = sorts.map(({ column, descending }) => ({ value: column.value, descending }));
    shown = sortRows(given, keys);
    if (expanded) shown = expanded(shown, keys);
    cursor = Math.max(selected === null ? 0 : shown.indexOf(selected), 0);
    grid.setAttribute("aria-rowcount", String(shown.length + 1));
    empty.hidden = shown.length > 0;
    wantsSelectedInView = selected !== null;
    if (selected === null) grid.scrollTop = 0;
    draw();
  }

  function viewport(): Viewport {
    const height = Math.max(grid.clientHeight - head.offsetHeight, ROW_HEIGHT);
    return { count: shown.length, rowHeight: ROW_HEIGHT, height };
  }

  function drawNow(): void {
    if (grid.clientHeight === 0) return; // on a hidden tab; drawn when the size changes
    const view = viewport();
    body.style.height = `${listHeight(view)}px`;
    if (wantsSelectedInView) {
      wantsSelectedInView = false;
      grid.scrollTop = scrollToRow(view, grid.scrollTop, cursor);
    }
    const growing = headers[columns.findIndex(({ grows }) => grows)];
    letters = growing ? Math.floor((growing.cell.clientWidth - 14) / 7.4) : MOST_LETTERS;
    const { first, last, top } = visibleRows(view, grid.scrollTop);
    while (body.children.length > last - first) body.lastElementChild!.remove();
    while (body.children.length < last - first) body.append(newLine());
    for (let index = first; index < last; index++) {
      const line = body.children[index - first] as HTMLElement;
      fill(line, index, top + (index - first) * ROW_HEIGHT);
    }
    if (cursor >= first && cursor < last) grid.setAttribute("aria-activedescendant", idOf(cursor));
    else grid.removeAttribute("aria-activedescendant");
  }

  function idOf(index: number): string {
    return `${prefix}-row-${index}`;
  }

  function newLine(): HTMLElement {
    const cells = columns.map((column) =>
      element("div", { role: "gridcell", class: column.isNumber ? "number" : "" }));
    return element("div", { role: "row", class: "table-row" }, ...cells);
  }

  function fill(line: HTMLElement, index: number, top: number): void {
    const row = shown[index]!;
    line.style.top = `${top}px`;
    line.id = idOf(index);
    line.dataset.index = String(index);
    line.dataset.row = String(row);
    line.setAttribute("aria-rowindex", String(index + 2));
    line.setAttribute("aria-selected", String(row === selected));
    line.classList.toggle("at-cursor", index === cursor);
    if (colour) line.style.borderLeftColor = colour(row);
    for (const [i, column] of columns.entries()) {
      const cell = line.children[i] as HTMLElement;
      const text = column.text(row).slice(0, MOST_LETTERS);
      const short = column.grows ? shortName(text, letters) : text;
      if (cell.textContent !== short) cell.textContent = short;
      cell.title = text.length > 14 ? text : "";
    }
  }

  function open(index: number): void {
    if (index < shown.length) onOpen(shown[index]!);
    cursor = index;
    draw();
  }

  function onKey(event: KeyboardEvent): void {
    const inHeader = headers.findIndex(({ sorter }) => sorter === event.target);
    if (inHeader >= 0) {
      const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
      const next = headers[inHeader + step];
      if (step === 0 || !next) return;
      headers[inHeader]!.sorter.tabIndex = -1;
      next.sorter.tabIndex = 0;
      next.sorter.focus();
      event.preventDefault();
      return;
    }
    const last = shown.length - 1;
    const moves: Record<string, number> = {
      ArrowDown: cursor + 1, ArrowUp: cursor - 1, PageDown: cursor + PAGE_ROWS,
      PageUp: cursor - PAGE_ROWS, Home: 0, End: last,
    };
    const to = moves[event.key];
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") open(cursor);
    else if (to !== undefined) cursor = Math.min(Math.max(to, 0), Math.max(last, 0));
    else return;
    event.preventDefault();
    event.stopPropagation(); // the page's arrow keys move through time
    grid.scrollTop = scrollToRow(viewport(), grid.scrollTop, cursor);
    draw();
  }

  return {
    show(rows, isKept = false) {
      given = rows;
      const { scrollTop } = grid;
      order();
      if (!isKept) return;
      wantsSelectedInView = false;
      grid.scrollTop = scrollTop;
    },
    refresh: draw,
    select(row) {
      if (row === selected) return;
      selected = row;
      const index = row === null ? -1 : shown.indexOf(row);
      if (index >= 0) cursor = index;
      wantsSelectedInView = index >= 0;
      draw();
    },
  };
}
