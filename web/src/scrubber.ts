/** Moves the selected moment: a slider, and steps of one event. */

import { button } from "./elements.ts";
import type { Model } from "./model.ts";
import type { Selection } from "./selection.ts";
import { momentText } from "./text.ts";
import { element } from "./view.ts";

export function createScrubber(root: HTMLElement, { device }: Model, selection: Selection): void {
  const entries = device.events.count + 1;
  const last = entries - 1;
  const slider = element("input", { type: "range", min: "0", max: String(last), step: "1" });
  const label = element("label", { class: "scrubber" }, "Moment ", slider);
  const text = element("output", {});
  slider.addEventListener("input", () => selection.update({ entry: Number(slider.value) }));
  const go = (by: number): void => {
    const entry = Math.max(0, Math.min(last, selection.state.entry + by));
    selection.update({ entry });
  };
  root.append(
    label,
    text,
    button("◀", () => go(-1), { "aria-label": "Previous event", title: "Previous event (key ←)" }),
    button("▶", () => go(1), { "aria-label": "Next event", title: "Next event (key →)" }),
  );

  const show = (): void => {
    const { entry } = selection.state;
    slider.value = String(entry);
    text.textContent = momentText(device, entry);
    slider.setAttribute("aria-valuetext", text.textContent);
  };
  selection.subscribe((state, previous) => {
    if (state.entry !== previous.entry) show();
  });
  show();
}
