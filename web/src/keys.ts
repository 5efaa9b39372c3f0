/** The keys of the page, for its help. */

export const KEYS = [
  ["Drag, wheel", "in the timeline: select a range, zoom; with Shift, the wheel moves the view, with Ctrl it zooms the bytes"],
  ["Tab", "go to the next view or control"],
  ["← →", "in the timeline and the map: move the moment; in a table's header: the next column"],
  ["Shift+← →", "in the timeline: move the view; in the map: move the moment by 100 events"],
  ["+ -", "in the timeline and the map: zoom"],
  ["W S A D", "in the timeline: zoom in and out, move the view left and right"],
  ["[ ]", "in the timeline: begin and end the range at the selected moment"],
  ["0", "in the timeline: show everything"],
  ["↑ ↓", "in the timeline: zoom the bytes; in a table the next row; in the map the block before or after; in the flame graph and the modules the box above and the largest one below"],
  ["Enter", "in a table: open a call site, or select the row's block; in a header: sort"],
  ["Shift+Enter", "in a table's header: add the column to the sort"],
  ["Home End", "the first and the last row; in the timeline the first and the last moment"],
  ["Escape", "in the timeline: clear the range and the block; in the flame graph and the modules: show all"],
] as const;
