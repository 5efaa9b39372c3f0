/** Moves the selected moment: a slider, steps of one event, and play. */

import { button } from "./elements.ts";
import type { Model } from "./model.ts";
import type { Selection } from "./selection.ts";
import { momentText } from "./text.ts";
import { element } from "./view.ts";
import { shown } from "./axis.ts";

/** The seconds in which play shows the interval of the timeline. */
const PLAY_SECONDS = 20;

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
  let frame = 0;
  let begun = { time: 0, entry: 0 };
  const play = button("Play", toggle, { title: "Play the events that the timeline shows" });
  root.append(
    label,
    text,
    button("◀", () => go(-1), { "aria-label": "Previous event", title: "Previous event (key ←)" }),
    button("▶", () => go(1), { "aria-label": "Next event", title: "Next event (key →)" }),
    play,
  );

  function toggle(): void {
    if (frame) return stop();
    const [first, end] = shown(selection.state.zoom, entries);
    const { entry } = selection.state;
    begun = { time: performance.now(), entry: entry >= first && entry < end ? entry : first };
    play.textContent = "Pause";
    frame = requestAnimationFrame(advance);
  }
  function advance(): void {
    const [first, end] = shown(selection.state.zoom, entries);
    const seconds = (performance.now() - begun.time) / 1000;
    const speed = Math.max(2, (end - first) / PLAY_SECONDS);
    const entry = Math.min(end, Math.round(begun.entry + seconds * speed));
    if (!root.isConnected) return;
    frame = requestAnimationFrame(advance);
    selection.update({ entry });
    if (entry >= end) stop();
  }
  function stop(): void {
    cancelAnimationFrame(frame);
    frame = 0;
    play.textContent = "Play";
  }
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
