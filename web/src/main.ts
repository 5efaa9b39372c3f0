/** The page: reads its data, opens a file, and makes the views, which one selection links. */

import "./style.css";
import "./views.css";
import { createBlocksTable } from "./blocks_table.ts";
import { decodeText } from "./decode.ts";
import { createDetail } from "./detail.ts";
import { createDifference } from "./difference.ts";
import { createEventsTable } from "./events_table.ts";
import { createFlame } from "./flame.ts";
import { createHeader } from "./header.ts";
import { layoutsOf } from "./layout.ts";
import { activeAt } from "./lives.ts";
import { createMap } from "./map.ts";
import { createModules } from "./modules.ts";
import { createMoment } from "./moment.ts";
import { type FileData, mainEntry, type Model, type Page } from "./model.ts";
import { createRanks } from "./ranks.ts";
import { fromHash, Selection, START, type State, toHash } from "./selection.ts";
import { createTabs, type TabView } from "./tabs.ts";
import { size } from "./text.ts";
import { onTheme } from "./theme.ts";
import { createTimeline } from "./timeline.ts";
import { usageOf } from "./usage.ts";
import { element } from "./view.ts";

const app = document.getElementById("app")!;
/** The document with the data: this one, or that of a page that was dropped onto it. */
let source = document;
let page = pageOf(document)!;
let opened: { index: number; file: Promise<FileData | null> } | null = null;

function pageOf(of: Document): Page | null {
  try {
    return JSON.parse(of.getElementById("pytracer-page")?.textContent ?? "null") as Page | null;
  } catch {
    return null; // a file of another program
  }
}

/** Decode a file. Only the last one is kept, so that many ranks do not fill the memory. */
function fileAt(index: number): Promise<FileData | null> {
  if (opened?.index !== index) {
    const id = page.files[index]?.data;
    const text = id ? source.getElementById(id)?.textContent : null;
    opened = { index, file: text ? decodeText(text) : Promise.resolve(null) };
  }
  return opened.file;
}

/** Return the state with a moment, and a colouring that shows the answer, if it has none. */
function completed(state: Readonly<State>, model: Model): State {
  const { device, file } = model;
  const { blocks, events } = device;
  const entry = state.entry < 0 ? mainEntry(device) : Math.min(events.count, state.entry);
  let [unnamed, total] = [0, 0];
  for (const i of activeAt(blocks, entry)) {
    total += blocks.size_bytes[i]!;
    const category = file.categories[file.kinds[blocks.kind[i]!]![0]];
    if (["unknown", "kept by other objects"].includes(category!)) unnamed += blocks.size_bytes[i]!;
  }
  const shows = page.verdict.is_leak || unnamed > 0.2 * total ? "site" : "category";
  return {
    ...state,
    entry,
    block: state.block !== null && state.block < blocks.count ? state.block : null,
    colour: state.colour ?? shows,
  };
}

let openings = 0;

/** Make all views of a file and device. A new selection drops the listeners of earlier views. */
async function open(state: Readonly<State>): Promise<void> {
  const turn = ++openings;
  // The earlier views are gone at once: they must not draw a selection of another file.
  const name = page.files[state.file]?.name ?? "the file";
  app.replaceChildren(element("p", { role: "status" }, `Reading ${name} …`));
  let file: FileData | null = null;
  let failure: unknown = null;
  try {
    file = await fileAt(state.file);
  } catch (error) {
    failure = error;
  }
  if (turn !== openings) return; // meanwhile, another file was chosen
  const device = file?.devices[state.device];
  const header = element("header");
  const main = element("main");
  let selection: Selection;
  if (file && device) {
    const model: Model = {
      page,
      file,
      device,
      usage: usageOf(file, device),
      layouts: layoutsOf(file, device),
    };
    selection = new Selection(completed(state, model), openAnother);
    // For the tests, which compare it with pytracer's analysis, and for the browser's console.
    Object.assign(window, { pytracerModel: model, pytracerSelection: selection });
    app.replaceChildren(header, main);
    show(main, model, selection);
  } else {
    selection = new Selection(state, openAnother);
    app.replaceChildren(header, main);
    if (failure !== null) main.append(element("p", { role: "alert" }, unreadable(state, failure)));
    if (page.files.length === 0) main.append(chooser());
    else createTabs(main, viewsOfPage(selection), selection);
  }
  createHeader(header, page, selection, file);
  current = selection;
  selection.subscribe(keepAddress);
}

/** Return a field for those who do not drag files. */
function chooser(): HTMLElement {
  const field = element("input", { type: "file" });
  field.addEventListener("change", () => void openDropped(field.files![0]!));
  return element("label", {}, "Or choose a file: ", field);
}

function openAnother(state: Readonly<State>): void {
  keepAddress(state);
  void open(state);
}

function unreadable({ file }: Readonly<State>, failure: unknown): string {
  const name = page.files[file]?.name ?? `file ${file}`;
  return `The data of ${name} in this report is damaged (${String(failure)}). Write the report again.`;
}

/** Make the views of a device: the timeline with the tabs below, and details next to them. */
function show(main: HTMLElement, model: Model, selection: Selection): void {
  const views = element("div", { class: "views" });
  const aside = element("aside", { class: "details", "aria-label": "Details" });
  main.append(element("div", { class: "columns" }, views, aside));
  const events: TabView =
    { tab: "events", label: "Events", create: (root) => createEventsTable(root, model, selection) };
  const { contradiction } = model.device;
  if (contradiction !== null) {
    // Without a history there are no blocks, so that only the events can be shown.
    views.append(element("p", { class: "panel", role: "note" }, contradiction));
    createTabs(views, [events, ...viewsOfPage(selection)], selection);
    return;
  }
  const timeline = element("section", { class: "panel", id: "timeline", "aria-label": "Memory over time" });
  views.append(timeline);
  createTimeline(timeline, model, selection);
  const map: TabView =
    { tab: "map", label: "Memory map", create: (root) => createMap(root, model, selection) };
  const tabs: TabView[] = [
    { tab: "blocks", label: "Blocks", create: (root) => createBlocksTable(root, model, selection) },
    events,
    { tab: "flame", label: "Flame graph", create: (root) => createFlame(root, model, selection) },
  ];
  if (model.file.modules.length > 1 && model.device.blocks.module.some((path) => path > 0)) {
    tabs.push({ tab: "modules", label: "Modules", create: (root) => createModules(root, model, selection) });
  }
  // The first tab is open at the start. The CPU's allocator has no segments.
  if (model.usage.has_segments) tabs.unshift(map);
  createTabs(views, page.difference ? [...viewsOfPage(selection), ...tabs]
    : [...tabs, ...viewsOfPage(selection)], selection);
  const detail = element("section", { class: "panel", "aria-label": "Selected block" });
  aside.append(detail);
  createDetail(detail, model, selection);
  createMoment(aside, model, selection);
}

/** The views that need no open file. */
function viewsOfPage(selection: Selection): TabView[] {
  const found: TabView[] = [];
  if (page.difference) {
    const create = (root: HTMLElement): void => createDifference(root, page);
    found.push({ tab: "difference", label: "Difference", create });
  }
  if (page.files.length > 1) {
    found.push({ tab: "ranks", label: "Files", create: (root) => createRanks(root, page, selection) });
  }
  return found;
}

let current: Selection | null = null;
let waiting = 0;

/** Write the selection into the address, at most a few times a second: browsers refuse more. */
function keepAddress(state: Readonly<State>): void {
  if (location.protocol === "about:") return; // in a notebook, the page has no address of its own
  clearTimeout(waiting);
  waiting = window.setTimeout(() => history.replaceState(null, "", `#${toHash(state)}`), 250);
}

/** Show a file that was dropped: a page, or which command makes the page of a snapshot. */
async function openDropped(file: File): Promise<void> {
  const text = file.name.endsWith(".html") ? await file.text() : "";
  source = new DOMParser().parseFromString(text, "text/html"); // runs no scripts
  const found = pageOf(source);
  page = found?.format === page.format ? found : withoutData(file, text !== "");
  opened = null;
  document.title = page.title;
  openAnother(START);
}

function withoutData({ name, size: bytes }: File, isPage: boolean): Page {
  const quoted = /^[\w.@%+=:,-]+$/.test(name) ? name : `'${name.replaceAll("'", `'"'"'`)}'`;
  const verdict = isPage ? {
    heading: `${name} is not a page of pytracer ${page.pytracer}`, lines: [], commands: [], is_leak: false,
  } : {
    heading: `${name}, ${size(bytes)}: pytracer makes its page`,
    lines: ["Run this command in the folder of the file, and drop the page here or open it:"],
    commands: [`pytracer view ${quoted}`],
    is_leak: false,
  };
  return { ...page, title: name, verdict, files: [], left_out: [], difference: null };
}

window.addEventListener("dragover", (event) => event.preventDefault());
window.addEventListener("drop", (event) => {
  event.preventDefault();
  const file = event.dataTransfer?.files[0];
  if (file) void openDropped(file);
});
document.title = page.title;
onTheme(() => current?.refresh());
window.addEventListener("hashchange", () => void open(fromHash(location.hash)));
void open(fromHash(location.hash));
