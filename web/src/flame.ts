/**
 * The flame graph: who holds the active bytes of the selected moment, by call stack; or bytes ×
 * lifetime, as the bytes that each stack holds on average.
 */

import { checkbox } from "./elements.ts";
import { CUT, flameTree, type FlameNode, pathsOf } from "./flame_tree.ts";
import { framePlace } from "./frame_place.ts";
import { createIcicle } from "./icicle.ts";
import { meanBytes } from "./lives.ts";
import type { Model } from "./model.ts";
import type { Selection } from "./selection.ts";
import { frameText, rangeText, size } from "./text.ts";

/** Show the flame graph of a model. */
export function createFlame(root: HTMLElement, model: Model, selection: Selection): void {
  const { device, file } = model;
  const { blocks } = device;
  const options = { hasLibraries: false, isInverted: false, isMean: false };
  const range = (): [number, number] => selection.state.range ?? [0, device.events.count];
  let pathOf = pathsOf(file, options);
  const option = (name: keyof typeof options, text: string): HTMLElement =>
    checkbox(text, false, (isChecked) => {
      options[name] = isChecked;
      pathOf = pathsOf(file, options);
      draw();
    });
  const draw = createIcicle(root, model, selection, {
    label: "Flame graph",
    by: "by call stack",
    example: "file or function",
    options: [option("hasLibraries", "Frames of torch and libraries"), option("isInverted", "Callers below"),
      option("isMean", "Bytes × lifetime")],
    key: () => [...Object.values(options), ...(options.isMean ? range() : [])].join(" "),
    moment: () => (options.isMean ? `on average ${rangeText(device, range())}` : null),
    tree: (active, groupOf) => options.isMean
      ? flameTree(blocks.stack.keys(), { ...blocks, size_bytes: meanBytes(blocks, range()) }, groupOf, pathOf)
      : flameTree(active, blocks, groupOf, pathOf),
    nameOf({ frame }: FlameNode) {
      if (frame === CUT) return `(cut at ${file.stack_depth} frames)`;
      return frame < 0 ? "(no call stack)" : frameText(file, frame);
    },
    shortText: ({ frame, bytes }) =>
      `${file.strings[file.frames.name[frame]!]!}  ${size(bytes)}  ${framePlace(file, frame)}`,
  });
}
