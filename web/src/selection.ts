/**
 * The one selection that links all views, mirrored in the page's address.
 *
 * A view changes the selection by `update`, and draws what `subscribe` reports, including its own
 * changes. So no view needs to know another one.
 */

import { AXES, type AxisName } from "./axis.ts";

export const COLOURS = ["category", "site", "phase", "step", "age"] as const;
export type Colour = (typeof COLOURS)[number];

/** Return the name of a colouring, as people see it. */
export const colourName = (colour: Colour): string => (colour === "site" ? "call site" : colour);

export const TABS = ["map", "blocks", "events", "flame", "modules", "ranks", "difference"] as const;
export type Tab = (typeof TABS)[number];

export interface State {
  /** An index in `Page.files`, and one in `FileData.devices`. */
  file: number;
  device: number;
  /** The selected moment: an entry of the device's history. */
  entry: number;
  /** The selected interval of entries, first and last; null: none. */
  range: [number, number] | null;
  /** The entries that the timeline shows, first and last; null: all. */
  zoom: [number, number] | null;
  /** The bytes at the lower and the upper edge of the timeline; null: all. */
  bytes: [number, number] | null;
  /** The selected block; null: none. */
  block: number | null;
  /** null: the page chooses, until the reader does. */
  colour: Colour | null;
  /** What the timeline's axis counts. */
  axis: AxisName;
  /** The text that the tables search. */
  filter: string;
  /** The view below the timeline; null: the first one. */
  tab: Tab | null;
}

/** Return what opens another file or device: only how the page shows it stays. */
export function opening({ colour, axis, tab }: Readonly<State>, parts: Partial<State>): State {
  return { ...START, colour, axis, tab, ...parts };
}

export type Listener = (state: Readonly<State>, previous: Readonly<State>) => void;

/** The state at the start; -1 as the entry lets the page choose a moment. */
export const START: Readonly<State> = {
  file: 0,
  device: 0,
  entry: -1,
  range: null,
  zoom: null,
  bytes: null,
  block: null,
  colour: null,
  axis: "events",
  filter: "",
  tab: null,
};

export class Selection {
  private current: Readonly<State>;
  private readonly listeners = new Set<Listener>();

  /**
   * @param onOpen Called in place of the listeners when another file or device is selected: the
   *   entries and blocks of the new state are not those of the views that listen.
   */
  constructor(
    state: Readonly<State> = START,
    private readonly onOpen: (state: Readonly<State>) => void = () => {},
  ) {
    this.current = state;
  }

  get state(): Readonly<State> {
    return this.current;
  }

  /** What the areas are coloured by. */
  get colour(): Colour {
    return this.current.colour ?? "category";
  }

  /** Change parts of the state. Listeners are called once, and only if something has changed. */
  update(parts: Partial<State>): void {
    const previous = this.current;
    const next = { ...previous, ...parts };
    if (toHash(next) === toHash(previous)) return;
    this.current = next;
    if (next.file !== previous.file || next.device !== previous.device) return this.onOpen(next);
    this.call(next, previous);
  }

  /** Call the listeners without a change of the state, such as for a new theme. */
  refresh(): void {
    this.call(this.current, this.current);
  }

  private call(next: Readonly<State>, previous: Readonly<State>): void {
    for (const listener of [...this.listeners]) {
      if (this.listeners.has(listener)) listener(next, previous);
    }
  }

  /** Call a function after each change. Returns a function that ends this. */
  subscribe(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

/** Return the state as the text after "#" in the page's address; parts as at the start are left out. */
export function toHash(state: Readonly<State>): string {
  const parts: string[] = [];
  for (const key of Object.keys(START) as (keyof State)[]) {
    const value = state[key];
    if (value === START[key] || value === null) continue;
    const text = Array.isArray(value) ? value.join("-") : String(value);
    parts.push(`${key}=${encodeURIComponent(text)}`);
  }
  return parts.join("&");
}

/** Return the state of a text that `toHash` made. Parts that cannot be read are as at the start. */
export function fromHash(hash: string): State {
  const state: State = { ...START };
  const read = new URLSearchParams(hash.replace(/^#/, ""));
  const whole = (text: string | null): number | null =>
    text !== null && /^\d{1,15}$/.test(text) ? Number(text) : null;
  for (const key of ["file", "device", "entry", "block"] as const) {
    const value = whole(read.get(key));
    if (value !== null) state[key] = value;
  }
  for (const key of ["range", "zoom", "bytes"] as const) {
    const [first, last] = (read.get(key) ?? "").split("-").map(whole);
    if (first != null && last != null && first <= last - Number(key === "bytes")) state[key] = [first, last];
  }
  state.axis = AXES.find((name) => name === read.get("axis")) ?? START.axis;
  const colour = COLOURS.find((name) => name === read.get("colour"));
  const tab = TABS.find((name) => name === read.get("tab"));
  if (colour) state.colour = colour;
  if (tab) state.tab = tab;
  state.filter = read.get("filter") ?? "";
  return state;
}
