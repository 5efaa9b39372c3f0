/** The field and the menus above a table. All of them edit the one filter of the page. */

import { afterPause, menu } from "./elements.ts";
import { valueOf, withValue } from "./filter_terms.ts";
import type { Selection } from "./selection.ts";
import { element } from "./view.ts";

/** A menu that writes the term `key:value` into the filter. */
export interface FilterMenu {
  key: string;
  label: string;
  /** Pairs of a value and its text; the value "" is "no such term". */
  options: (readonly [value: string, text: string])[];
}

/** Show how many rows fit, and what is wrong with the filter; "" if nothing is. */
export type ShowFilterResult = (status: string, error: string) => void;

const PAUSE_MS = 120;

/** Add a filter bar to an element. */
export function createFilterBar(
  root: HTMLElement,
  selection: Selection,
  menus: readonly FilterMenu[],
  example: string,
): ShowFilterResult {
  const field = element("input", {
    type: "search", placeholder: example, spellcheck: "false", autocomplete: "off",
    title: "Terms that must all match. A word: part of a file, function or tensor name. " +
      "0x…: an address. size>=1MiB: a size.",
  });
  field.value = selection.state.filter;
  let typed = field.value;
  const apply = afterPause(() => {
    typed = field.value;
    selection.update({ filter: typed });
  }, PAUSE_MS);
  field.addEventListener("input", apply);

  const selects = menus.map(({ key, label, options }) => {
    const made = menu(label, options, valueOf(field.value, key), (value) =>
      selection.update({ filter: withValue(selection.state.filter, key, value) }));
    return { key, ...made };
  });
  const status = element("span", { role: "status" });
  const problem = element("span", { class: "error", role: "alert" });
  root.append(element("div", { class: "bar filter", role: "search" },
    element("label", {}, "Search ", field), ...selects.map((made) => made.root), status, problem));

  selection.subscribe(({ filter }, previous) => {
    if (filter === previous.filter) return;
    if (filter !== typed) field.value = typed = filter; // leaves the cursor of the one who types
    for (const { key, select } of selects) select.value = valueOf(filter, key);
  });
  return (text, error) => {
    if (status.textContent !== text) status.textContent = text;
    if (problem.textContent !== error) problem.textContent = error;
  };
}
