/** The answer at the top of the page: two lines, which open on a click. */

import { button } from "./elements.ts";
import type { FileData, Page } from "./model.ts";
import type { Selection, State } from "./selection.ts";
import { element } from "./view.ts";

/** Return the answer in two lines, its heading and what to do; a click shows all of it. */
export function createVerdict(
  page: Page, selection: Selection, file: FileData | null, tools: HTMLElement,
): HTMLElement {
  const { verdict: { heading, lines, commands, is_leak }, title, files, left_out } = page;
  const root = element("section", { class: "panel verdict", id: "verdict", "aria-label": "Verdict" });
  root.classList.toggle("is-bad", files.some(({ ooms }) => ooms > 0));
  root.classList.toggle("is-leak", is_leak);
  const short = lines.find((line) => line.startsWith("Do: ")) ?? lines[0];
  // The verdict is about the first device of the first file.
  const names = selection.state.file === 0 && file ? namesOf(file) : null;
  const list = element("ul", { id: "answer" }, ...lines.map((line) =>
    element("li", { class: line === short ? "is-short" : "" },
      ...(names ? linked(line, names, selection) : [line]))));
  const more = button("More", toggle, { "aria-expanded": "false", "aria-controls": list.id });
  function toggle(): void {
    const isOpen = root.classList.toggle("is-open");
    more.textContent = isOpen ? "Less" : "More";
    more.setAttribute("aria-expanded", String(isOpen));
  }
  root.addEventListener("click", ({ target }) => {
    const isText = getSelection()?.isCollapsed === false; // a reader selects a part to copy it
    if (!isText && !(target as Element).closest("button, select, label, code")) toggle();
  });
  if (files.length === 0) toggle();
  root.append(
    element("div", { class: "verdict-top" }, element("h1", {}, heading || title), more, tools),
    list,
    element("div", { class: "bar" }, ...commands.map(commandLine),
      copyButton("Copy as Markdown", markdown(page), list)),
    element("div", { class: "left-out" }, ...left_out.map((sentence) => element("p", {}, sentence))));
  return root;
}

/** Names that a line of the verdict may have, and what the page shows of each. */
type Names = ReadonlyMap<string, Partial<State>>;

function namesOf({ sites, categories, devices }: FileData): Names {
  const names = new Map<string, Partial<State>>();
  for (const category of categories) {
    const parts: Partial<State> = { tab: "blocks", filter: `category:"${category}"` };
    names.set(category, parts).set(`${category}s`, parts);
  }
  for (const site of sites.slice(1)) {
    names.set(site, { tab: "blocks", filter: `"${site.replaceAll('"', "")}"` });
  }
  for (const { kind, event } of devices[0]?.marks ?? []) {
    if (kind !== "end") names.set(kind === "oom" ? "Asked" : "Peak", { entry: event + 1 });
  }
  return names;
}

/** The most words of a name: a call site names its function, and the node of a backward pass. */
const MOST_WORDS = 6;

/** Return a line with buttons in place of the names in it; of several, the longest one. */
function linked(line: string, names: Names, selection: Selection): (Node | string)[] {
  const found: (Node | string)[] = [];
  const words = line.split(/(?<=[ :,;])|(?=[:,;])/);
  for (let at = 0; at < words.length; ) {
    let text = words[at]!;
    let length = 1;
    for (let tried = 2 * MOST_WORDS; tried > 0; tried--) {
      const name = words.slice(at, at + tried).join("");
      const parts = names.get(name.trimEnd());
      if (!parts || at + tried > words.length) continue;
      text = name.trimEnd();
      length = tried;
      found.push(button(text, () => selection.update(parts), { class: "link" }));
      text = name.slice(text.length);
      break;
    }
    found.push(text);
    at += length;
  }
  return found;
}

function commandLine(command: string): HTMLElement {
  const code = element("code", {}, command);
  return element("div", { class: "command" }, code, copyButton("Copy", command, code));
}

/** Return a button that copies a text; if the browser does not allow it, `source` is selected. */
function copyButton(label: string, text: string, source: HTMLElement): HTMLButtonElement {
  const name = label === "Copy" ? { "aria-label": `Copy the command ${text}` } : {};
  const made = button(label, async () => {
    try {
      await navigator.clipboard.writeText(text);
      made.textContent = "Copied";
    } catch {
      getSelection()?.selectAllChildren(source);
      made.textContent = "Press Ctrl+C";
    }
  }, { ...name, "aria-live": "polite" });
  return made;
}

/** Return the verdict as Markdown, in which names of the program mean nothing. */
export function markdown({ title, verdict: { heading, lines, commands } }: Page): string {
  const plain = (text: string): string => text.replace(/[\\`*_<>[\]|#]/g, "\\$&");
  return [
    `**${plain(heading || title)}**`, "", ...lines.map((line) => `- ${plain(line)}`), "",
    ...commands.map((command) => `    ${command}`),
  ].join("\n");
}
