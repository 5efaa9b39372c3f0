/** Buttons, menus and small tables. Texts become text nodes, never markup. */

import { element } from "./view.ts";

/** Return a button that calls a function. */
export function button(
  text: string,
  onClick: (event: MouseEvent) => void,
  attributes: Record<string, string> = {},
): HTMLButtonElement {
  const made = element("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", onClick);
  return made;
}

/** Return a menu with a visible label; `options` are pairs of a value and its text. */
export function menu(
  label: string,
  options: readonly (readonly [value: string, text: string])[],
  value: string,
  onChange: (value: string) => void,
): { root: HTMLLabelElement; select: HTMLSelectElement } {
  const select = element("select", {},
    ...options.map(([key, text]) => element("option", { value: key }, text)));
  select.value = value;
  select.addEventListener("change", () => onChange(select.value));
  return { root: element("label", {}, `${label} `, select), select };
}

/** Return a box to check, with its label. */
export function checkbox(
  label: string, isChecked: boolean, onChange: (isChecked: boolean) => void,
): HTMLLabelElement {
  const box = element("input", { type: "checkbox" });
  box.checked = isChecked;
  box.addEventListener("change", () => onChange(box.checked));
  return element("label", {}, box, label);
}

/** Return a table of texts and elements; the columns in `numeric` align to the right. */
export function plainTable(
  caption: string,
  header: readonly string[],
  rows: readonly (readonly (Node | string)[])[],
  numeric: ReadonlySet<number>,
): HTMLTableElement {
  const line = (tag: "td" | "th", cells: readonly (Node | string)[]): HTMLElement =>
    element("tr", {}, ...cells.map((cell, column) => element(
      tag,
      { class: numeric.has(column) ? "number" : "", ...(tag === "th" ? { scope: "col" } : {}) },
      cell,
    )));
  return element(
    "table", { class: "plain" },
    element("caption", {}, caption),
    element("thead", {}, line("th", header)),
    element("tbody", {}, ...rows.map((row) => line("td", row))),
  );
}

/** Return an element that scrolls, also by the keyboard. */
export function scrollRegion(label: string, ...children: Node[]): HTMLElement {
  const attributes = { class: "scroll", tabindex: "0", role: "region", "aria-label": label };
  return element("div", attributes, ...children);
}

/** Return a description list of pairs of a name and a value; pairs without a value are left out. */
export function factList(facts: readonly (readonly [string, Node | string])[]): HTMLDListElement {
  const shown = facts.filter(([, value]) => value !== "");
  return element("dl", { class: "facts" }, ...shown.flatMap(([name, value]) =>
    [element("dt", {}, name), element("dd", {}, value)]));
}

/** Return a function that calls another one after `delay` milliseconds without a further call. */
export function afterPause(call: () => void, delay: number): () => void {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = window.setTimeout(call, delay);
  };
}
