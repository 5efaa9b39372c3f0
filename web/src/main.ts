/** The page: reads its data, opens a file, and makes the views, which one selection links. */

import "uplot/dist/uPlot.min.css";
import "./style.css";
import { createBlocksTable } from "./blocks_table.ts";
import { decodeText } from "./decode.ts";
import { createDifference } from "./difference.ts";
import { createEventsTable } from "./events_table.ts";
import { createFlame } from "./flame.ts";
import { createHeader } from "./header.ts";
import { layoutsOf } from "./layout.ts";
import { createMap } from "./map.ts";
import type { FileData, Model, Page } from "./model.ts";
import { createRanks } from "./ranks.ts";
import { fromHash, Selection, type Tab, toHash } from "./selection.ts";
import { createTimeline } from "./timeline.ts";
import { usageOf } from "./usage.ts";
import { element } from "./view.ts";

type View = (root: HTMLElement, model: Model, selection: Selection) => void;

const VIEWS: { tab: Tab; label: string; create: View; isShown?: (page: Page) => boolean }[] = [
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

/** Make all views of a file and device. A new selection drops the listeners of earlier views. */
async function open(selection: Selection): Promise<void> {
  const file = await fileAt(selection.state.file);
  const header = element("header");
  const main = element("main");
  app.replaceChildren(header, main);
  createHeader(header, page, selection, file);
  const device = file?.devices[selection.state.device];
  if (file && device) {
    const model: Model = {
      page,
      file,
      device,
      usage: usageOf(file, device),
      layouts: layoutsOf(file, device),
    };
    const timeline = element("section", { class: "timeline" });
    const tabs = element("nav", { role: "tablist" });
    main.append(timeline, tabs);
    createTimeline(timeline, model, selection);
    for (const view of VIEWS) {
      if (view.isShown && !view.isShown(page)) continue;
      const panel = element("section", { class: view.tab, role: "tabpanel" });
      main.append(panel);
      view.create(panel, model, selection);
    }
  }
  selection.subscribe((state, previous) => {
    history.replaceState(null, "", `#${toHash(state)}`);
    if (state.file !== previous.file || state.device !== previous.device) {
      void open(new Selection(state));
    }
  });
}

document.title = page.title;
void open(new Selection(fromHash(location.hash)));
