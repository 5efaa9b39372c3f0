/** The flame graph of the selected moment: who holds the active bytes, by call stack. */

import { checkbox } from "./elements.ts";
import { CUT, flameTree, type FlameNode, pathsOf } from "./flame_tree.ts";
import { framePlace } from "./frame_place.ts";
import { createIcicle } from "./icicle.ts";
import type { Model } from "./model.ts";
import type { Selection } from "./selection.ts";
import { frameText, size } from "./text.ts";

/** Show the flame graph of a model. */
export function createFlame(root: HTMLElement, model: Model, selection: Selection): void {
  const { device: { blocks: { size_bytes, stack } }, file } = model;
  const options = { hasLibraries: false, isInverted: false };
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
    options: [option("hasLibraries", "Frames of torch and libraries"), option("isInverted", "Callers below")],
    key: () => Object.values(options).join(" "),
    tree: (active, groupOf) => flameTree(active, { size_bytes, stack }, groupOf, pathOf),
    nameOf({ frame }: FlameNode) {
      if (frame === CUT) return `(cut at ${file.stack_depth} frames)`;
      return frame < 0 ? "(no call stack)" : frameText(file, frame);
    },
    shortText: ({ frame, bytes }) =>
      `${file.strings[file.frames.name[frame]!]!}  ${size(bytes)}  ${framePlace(file, frame)}`,
  });
}
