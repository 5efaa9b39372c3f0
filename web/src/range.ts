/** What a selected range of time allocated and did not release. */

import { UNRELEASED } from "./block_columns.ts";
import { blockSize } from "./block_texts.ts";
import { afterPause, button, factList, scrollRegion } from "./elements.ts";
import { withValue } from "./filter_terms.ts";
import { unreleased, type BlockSums } from "./lives.ts";
import type { Model } from "./model.ts";
import type { Selection } from "./selection.ts";
import { siteTable, sumBySite } from "./site_table.ts";
import { counted, eventNumber, siteText, size } from "./text.ts";
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
    const found = unreleased(blocks, range[0], range[1]);
    const sums = sumBySite(file, blocks, found);
    const from = range[0] > 0 ? `After event ${eventNumber(device, range[0] - 1)} up to` : "Up to";
    const last = eventNumber(device, Math.max(range[1] - 1, 0));
    shown.replaceChildren(
      element("h2", {}, `${from} event ${last}: ${size(sums.bytes)} allocated and not released`),
      facts(sums),
      ...(sums.count > 0 ? [scrollRegion("Call sites of the range", siteTable(file, sums))] : []),
      element("div", { class: "bar" },
        button("Show these blocks in the table", () => selection.update({
          filter: withValue(selection.state.filter, "state", UNRELEASED) })),
        button("Remove the range", () => selection.update({
          range: null, filter: withValue(selection.state.filter, "state", "") }))));
  }

  function facts(sums: BlockSums): HTMLElement {
    if (sums.count === 0) {
      return element("p", {}, "All blocks that were allocated in this range were released in it.");
    }
    return factList([
      ["Total", `${size(sums.bytes)} in ${counted(sums.count, "block")}`],
      ["Largest", blockLink(sums.largest)],
      ["Smallest", blockLink(sums.smallest)],
    ]);
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
