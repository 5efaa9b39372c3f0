/** The page: reads its data, opens a file, and makes the views, which one selection links. */

import "uplot/dist/uPlot.min.css";
import "./style.css";
import { createBlocksTable } from "./blocks_table.ts";
import { decodeText } from "./decode.ts";
import { createDetails } from "./details.ts";
import { createDifference } from "./difference.ts";
import { createEventsTable } from "./events_table.ts";
import { createFlame } from "./flame.ts";
import { createHeader } from "./header.ts";
import { layoutsOf } from "./layout.ts";
import { createMap } from "./map.ts";
import type { FileData, Mark, Model, Page } from "./model.ts";
import { createRanks } from "./ranks.ts";
import { fromHash, Selection, START, type State, toHash } from "./selection.ts";
import { createTabs, type TabView } from "./tabs.ts";
import { createTimeline } from "./timeline.ts";
import { usageOf } from "./usage.ts";
import { element } from "./view.ts";

const VIEWS: (TabView & { isShown?: (page: Page) => boolean })[] = [
  { tab: "map", label: "Memory map", create: createMap },
  { tab: "blocks", label: "Blocks", create: createBlocksTable },
  { tab: "events", label: "Events", create: createEventsTable },
  { tab: "flame", label: "Flame graph", create: createFlame },
  {
    tab: "ranks",
    label: "Ranks",
    create: (root, model, selection) => createRanks(root, model.page, selection),
    isShown: (page) => page.files.length > 1,
  },
  {
    tab: "difference",
    label: "Difference",
    create: (root, model, selection) => createDifference(root, model.page, selection),
    isShown: (page) => page.difference !== null,
  },
];

const app = document.getElementById("app")!;
const page = JSON.parse(document.getElementById("pytracer-page")?.textContent ?? "null") as Page;
const files = new Map<number, Promise<FileData | null>>();

function fileAt(index: number): Promise<FileData | null> {
  let found = files.get(index);
  if (!found) {
    const id = page.files[index]?.data;
    const text = id ? document.getElementById(id)?.textContent : null;
    found = text ? decodeText(text) : Promise.resolve(null);
    files.set(index, found);
  }
  return found;
}

/** Return the state with a moment, and a colouring that shows something, if it has none. */
function completed(state: Readonly<State>, model: Model): State {
  const { device, file } = model;
  const { blocks, marks, events } = device;
  const last = events.count;
  const mark = (kind: Mark["kind"]): Mark | undefined =>
    marks.filter((found) => found.kind === kind).at(-1);
  const chosen = mark("oom") ?? mark("peak");
  const entry = state.entry < 0 ? (chosen ? chosen.event + 1 : last) : state.entry;
  let unknown = 0;
  for (let i = 0; i < blocks.count; i++) {
    if (file.categories[file.kinds[blocks.kind[i]!]![0]] === "unknown") unknown += 1;
  }
  const isBlank = state.colour === "category" && unknown > 0.9 * blocks.count;
  return {
    ...state,
    entry: Math.max(0, Math.min(last, entry)),
    block: state.block !== null && state.block < blocks.count ? state.block : null,
    colour: isBlank ? "site" : state.colour,
  };
}

/** Make all views of a file and device. A new selection drops the listeners of earlier views. */
async function open(state: Readonly<State>): Promise<void> {
  let file: FileData | null = null;
  let failure: unknown = null;
  try {
    file = await fileAt(state.file);
  } catch (error) {
    failure = error;
  }
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
    selection = new Selection(completed(state, model));
    app.replaceChildren(header, main);
    show(main, model, selection);
  } else {
    selection = new Selection(state);
    app.replaceChildren(header, main);
    main.append(element("p", { class: "notice" }, reason(state, failure)));
  }
  createHeader(header, page, selection, file);
  selection.subscribe((next, previous) => {
    keepAddress(next);
    if (next.file === previous.file && next.device === previous.device) return;
    const isFile = next.file !== previous.file;
    void open({ ...START, file: next.file, device: isFile ? 0 : next.device, colour: next.colour, tab: next.tab });
  });
}

function reason(state: Readonly<State>, failure: unknown): string {
  const name = page.files[state.file]?.name ?? `file ${state.file}`;
  if (failure !== null) return `The data of ${name} cannot be read: ${String(failure)}. Write the report again.`;
  return [`The data of ${name} is not in this report.`, ...page.left_out].join(" ");
}

/** Make the views of a device: the timeline with details, and the tabs below. */
function show(main: HTMLElement, model: Model, selection: Selection): void {
  const views = element("div", { class: "views" });
  const details = element("aside", { class: "details", "aria-label": "Details" });
  main.append(views, details);
  if (model.device.contradiction) {
    views.append(element("p", { class: "notice" }, model.device.contradiction));
  }
  const timeline = element("section", { class: "timeline", "aria-label": "Memory over time" });
  views.append(timeline);
  createTimeline(timeline, model, selection);
  createTabs(views, VIEWS.filter((view) => view.isShown?.(page) ?? true), model, selection);
  createDetails(details, model, selection);
}

let waiting = 0;

/** Write the selection into the address, at most a few times a second: browsers refuse more. */
function keepAddress(state: Readonly<State>): void {
  clearTimeout(waiting);
  waiting = window.setTimeout(() => history.replaceState(null, "", `#${toHash(state)}`), 250);
}

document.title = page.title;
window.addEventListener("hashchange", () => void open(fromHash(location.hash)));
void open(fromHash(location.hash));
