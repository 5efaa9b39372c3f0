/** A box with lines of text next to the pointer, or below the parent so that it covers nothing of it. */

import { element } from "./view.ts";

export interface Tooltip {
  /** Show lines near a point of the parent, with a swatch in a colour. */
  show(x: number, y: number, lines: string[], swatch: string | null): void;
  hide(): void;
}

export function createTooltip(parent: HTMLElement, isBelow = false): Tooltip {
  // The same facts are in the details for keyboards and screen readers.
  const box = element("div", { class: "tooltip", "aria-hidden": "true" });
  box.hidden = true;
  parent.append(box);
  return {
    show(x, y, lines, swatch) {
      box.replaceChildren(...lines.map((text) => element("div", {}, text)));
      box.style.borderLeft = swatch ? `6px solid ${swatch}` : "";
      box.hidden = false;
      const { offsetWidth, offsetHeight } = box;
      const left = x + 16 + offsetWidth > parent.clientWidth ? x - offsetWidth - 12 : x + 16;
      const most = Math.max(0, parent.clientHeight - offsetHeight);
      const top = isBelow ? parent.clientHeight : Math.min(y + 12, most);
      box.style.left = `${Math.max(0, left)}px`;
      box.style.top = `${top}px`;
    },
    hide() {
      box.hidden = true;
    },
  };
}
