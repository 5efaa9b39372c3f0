/** The tabs below the timeline: one list of buttons, of which the arrow keys choose one. */

import type { Selection, Tab } from "./selection.ts";
import { element } from "./view.ts";

/** Show one of several panels: the one that the selection names. */
export function createTabs(
  list: HTMLElement,
  panels: readonly { tab: Tab; label: string; panel: HTMLElement }[],
  selection: Selection,
): void {
  list.setAttribute("role", "tablist");
  list.setAttribute("aria-label", "Views");
  list.classList.add("bar", "tabs");
  const buttons = panels.map(({ tab, label, panel }) => {
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", `tab-${tab}`);
    panel.id = tab;
    const made = element("button", {
      type: "button", role: "tab", id: `tab-${tab}`, "aria-controls": tab,
    }, label);
    made.addEventListener("click", () => selection.update({ tab }));
    return made;
  });
  list.append(...buttons);
  list.addEventListener("keydown", (event) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (step === 0) return;
    const at = buttons.findIndex((one) => one === document.activeElement);
    const to = (at + step + buttons.length) % buttons.length;
    selection.update({ tab: panels[to]!.tab });
    buttons[to]!.focus();
    event.preventDefault();
    event.stopPropagation(); // the page's arrow keys move through time
  });
  const show = (): void => {
    const { tab } = selection.state;
    const chosen = Math.max(panels.findIndex((one) => one.tab === tab), 0);
    for (const [i, { panel }] of panels.entries()) {
      panel.hidden = i !== chosen;
      buttons[i]!.setAttribute("aria-selected", String(i === chosen));
      buttons[i]!.tabIndex = i === chosen ? 0 : -1;
    }
  };
  selection.subscribe(show);
  show();
}
