/** The controls above the timeline: colouring, zoom, moments, and the selected range. */

import { type AxisName, axisOf, shown, zoomed } from "./axis.ts";
import { button, menu } from "./elements.ts";
import type { Model } from "./model.ts";
import { COLOURS, type Colour, colourName, type Selection } from "./selection.ts";
import { counted, rangeText, size } from "./text.ts";
import { element } from "./view.ts";

export function createTimelineTools(root: HTMLElement, model: Model, selection: Selection): void {
  const { device, usage } = model;
  const entries = device.events.count + 1;
  const bar = element("div", { class: "toolbar" });
  const choice = menu("Colour by", COLOURS.map((colour) => [colour, colourName(colour)] as const),
    selection.colour, (value) => selection.update({ colour: value as Colour }));
  bar.append(element("h2", {}, "Memory over time"), choice.root);

  const axis = menu("Axis", [["events", "events"], ["time", "time"]], selection.state.axis, (value) =>
    selection.update({ axis: value as AxisName }));
  if (device.has_times) bar.append(axis.root);

  const zoomBy = (factor: number): void => {
    const { zoom, entry } = selection.state;
    const interval = shown(zoom, entries);
    const isInside = entry >= interval[0] && entry <= interval[1];
    const centre = isInside ? entry : (interval[0] + interval[1]) / 2;
    selection.update({ zoom: zoomed(axisOf(device, selection.state.axis), interval, factor, centre) });
  };
  const zoom = element("span", { class: "buttons" }, "Zoom ",
    button("+", () => zoomBy(0.5), { title: "Zoom in at the selected moment (key +)" }),
    button("−", () => zoomBy(2), { title: "Zoom out (key -)" }),
    button("All", () => selection.update({ zoom: null, bytes: null }), {
      title: "Show the complete history (key 0)",
    }),
  );
  const moments = element("span", { class: "buttons" }, "Go to ");
  let ooms = 0;
  for (const mark of device.marks) {
    if (mark.kind === "oom" && ++ooms > 3) continue;
    const label = { peak: "Peak", oom: "OOM", end: "End" }[mark.kind];
    const name = mark.kind === "oom" && ooms > 1 ? `${label} ${ooms}` : label;
    const show = (): void => {
      const entry = mark.event + 1;
      const [first, last] = shown(selection.state.zoom, entries);
      const isInside = entry >= first && entry <= last;
      selection.update({ entry, zoom: isInside ? selection.state.zoom : null });
    };
    moments.append(button(name, show, { title: mark.text }));
  }
  const range = element("span", { class: "buttons chosen", role: "status" });
  bar.append(zoom, moments, range);
  root.append(bar);

  function show(): void {
    const { range: selected } = selection.state;
    const { colour } = selection;
    choice.select.value = colour;
    axis.select.value = selection.state.axis;
    if (!selected) {
      range.replaceChildren(element("span", { class: "hint" }, "Drag selects, wheel zooms"));
      return;
    }
    const change = usage.allocated[selected[1]]! - usage.allocated[selected[0]]!;
    range.replaceChildren(
      `${rangeText(device, selected)}: ${counted(selected[1] - selected[0], "event")}, ` +
        `allocated ${change > 0 ? "+" : ""}${size(change)} `,
      button("Zoom to range", () => selection.update({ zoom: selected })),
      button("Clear range", () => selection.update({ range: null })),
    );
  }
  selection.subscribe((state, previous) => {
    if ((["range", "colour", "axis"] as const).some((key) => state[key] !== previous[key])) show();
  });
  show();
}
