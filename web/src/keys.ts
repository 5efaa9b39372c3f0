/** The keys of the page, for its help. */

export const KEYS = [
  ["Tab", "go to the next view or control"],
  ["← →", "the moment before or after; in a table's header the next column"],
  ["↑ ↓", "in a table the next row; in the flame graph the caller and the largest callee"],
  ["Enter", "in a table: go to the row's moment and select its block; in a header: sort"],
  ["Shift+Enter", "in a table's header: add the column to the sort"],
  ["Home End", "the first and the last row"],
  ["Escape", "in the flame graph: show all"],
] as const;
