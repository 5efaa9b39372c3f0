/** The keys of the page, for its help. */

export const KEYS = [
  ["Drag, wheel", "in the timeline: select a range, zoom; Shift and the wheel move the view, Ctrl and the wheel zoom the axis of bytes"],
  ["Tab", "go to the next view or control"],
  ["← →", "in the timeline and the map: select an earlier or later moment; in a table's header: the next column"],
  ["Shift+← →", "in the timeline: move the view; in the map: go 100 events back or forward"],
  ["+ -", "in the timeline and the map: zoom"],
  ["W S A D", "in the timeline: zoom in and out, move the view left and right"],
  ["[ ]", "in the timeline: start or end the range at the selected moment"],
  ["0", "in the timeline: show everything"],
  ["↑ ↓", "in the timeline: zoom the axis of bytes; in a table: previous or next row; in the map: previous or next block; in the flame graph and the modules: the box above, or the largest one below"],
  ["Enter", "in a table: open a call site, or select the row's block; in a header: sort"],
  ["Shift+Enter", "in a table's header: add the column to the sort"],
  ["Home End", "the first and the last row; in the timeline the first and the last moment"],
  ["Escape", "in the timeline: clear the range and the block; in the flame graph and the modules: show all"],
] as const;
