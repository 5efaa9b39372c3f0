/** The sums of what a selected range of time allocated and did not release: the table has it. */

import { blockSize } from "./block_texts.ts";
import { afterPause, button, factList } from "./elements.ts";
import { unreleased } from "./lives.ts";
import type { Model } from "./model.ts";
import type { Selection } from "./selection.ts";
import { sortRows } from "./sort.ts";
import { counted, rangeText, siteText, size } from "./text.ts";
import { element } from "./view.ts";

/** Show the range of the selection; nothing while no range is selected. */
export function createRange(root: HTMLElement, model: Model, selection: Selection): void {
  const { device, file } = model;
  const { blocks } = device;
  const shown = element("section", { class: "range", id: "range", "aria-live": "polite" });
  root.append(shown);

  function draw(): void {
    const { range } = selection.state;
    shown.hidden = !range;
    if (!range) return;
    const kept = unreleased(blocks, range[0], range[1]);
    const bySize = { value: (block: number) => blocks.size_bytes[block]!, descending: true };
    const sorted = sortRows(kept, [bySize]);
    const bytes = kept.reduce((sum, block) => sum + blocks.size_bytes[block]!, 0);
    shown.replaceChildren(
      element("h2", {}, `${size(bytes)} allocated and not released ${rangeText(device, range)}`),
      kept.length === 0
        ? element("p", {}, "All blocks that were allocated in this range were released in it.")
        : factList([
          ["Total", `${size(bytes)} in ${counted(kept.length, "block")}`],
          ["Largest", blockLink(sorted[0]!)],
          ["Smallest", blockLink(sorted.at(-1)!)],
        ]));
  }

  function blockLink(block: number): HTMLElement {
    const text = `${blockSize(model, block)}, ${siteText(file, blocks.stack[block]!)}`;
    return button(text, () => selection.update({ block }), { class: "link" });
  }

  const drawLater = afterPause(draw, 100);
  selection.subscribe((state, previous) => {
    if (state.range !== previous.range) drawLater();
  });
  draw();
}
