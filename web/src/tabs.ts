/** The views below the timeline, of which one is shown. */

import type { Selection, Tab } from "./selection.ts";
import { element } from "./view.ts";

export interface TabView {
  tab: Tab;
  label: string;
  create(root: HTMLElement): void;
}

/** Make the tabs. A view is made when it is first shown, which keeps the first paint fast. */
export function createTabs(
  root: HTMLElement,
  views: readonly TabView[],
  selection: Selection,
): void {
  const list = element("div", { role: "tablist", class: "bar tabs", "aria-label": "Views" });
  root.append(list);
  const made = new Set<Tab>();
  const tabs = views.map((view) => {
    const tab = element("button", {
      type: "button",
      role: "tab",
      id: `tab-${view.tab}`,
      "aria-controls": view.tab,
    }, view.label);
    const panel = element("section", {
      class: "panel",
      role: "tabpanel",
      id: view.tab,
      "aria-labelledby": `tab-${view.tab}`,
    });
    tab.addEventListener("click", () => selection.update({ tab: view.tab }));
    list.append(tab);
    root.append(panel);
    return { view, tab, panel };
  });

  function show(): void {
    const chosen = tabs.find(({ view }) => view.tab === selection.state.tab) ?? tabs[0];
    for (const { view, tab, panel } of tabs) {
      const isChosen = view === chosen?.view;
      tab.setAttribute("aria-selected", String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
      panel.hidden = !isChosen;
      if (isChosen && !made.has(view.tab)) {
        made.add(view.tab);
        view.create(panel);
      }
    }
  }
  // As the pattern of tabs asks: arrows move between tabs, and Tab leaves them.
  list.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const at = tabs.findIndex(({ view }) => view.tab === selection.state.tab);
    const next = tabs[(Math.max(0, at) + by + tabs.length) % tabs.length]!;
    selection.update({ tab: next.view.tab });
    next.tab.focus();
    event.preventDefault();
    event.stopPropagation(); // the page's arrow keys move through time
  });
  selection.subscribe((state, previous) => {
    if (state.tab !== previous.tab) show();
  });
  show();
}
