/**
 * An icicle of the selected moment: the active bytes as boxes inside of boxes, such as frames below
 * their callers.
 *
 * The width of a box is its bytes. The boxes are a tree for the keyboard and for assistive software.
 */

import { colourOf, groupsOf } from "./colours.ts";
import { button } from "./elements.ts";
import { createFilterBar } from "./filter_bar.ts";
import { parseFilter } from "./filter_terms.ts";
import { ROOT, flameBoxes, matchedBytes, type FlameBox, type FlameNode } from "./flame_tree.ts";
import { activeAt } from "./lives.ts";
import type { Model } from "./model.ts";
import type { Selection } from "./selection.ts";
import { counted, momentText, size } from "./text.ts";
import { drawWhenNeeded, element } from "./view.ts";

const ROW_PIXELS = 22;
const LEAST_PIXELS = 3;
const MOST_ROWS = 200;

/** What the boxes are of. */
export interface Icicle {
  label: string;
  /** What the bytes are grouped by, as in "by call stack". */
  by: string;
  /** What the search looks for. */
  example: string;
  options: HTMLElement[];
  /** What the tree depends on apart from the moment and the colouring. */
  key(): string;
  /** What the bytes are of, as in "on average"; without it, and if it is null: the moment. */
  moment?(): string | null;
  tree(active: Uint32Array, groupOf: Uint8Array): FlameNode;
  /** The name of a node other than the root. */
  nameOf(node: FlameNode): string;
  /** The name and the bytes of such a node: what is cut off on the right is the least important. */
  shortText(node: FlameNode): string;
  /** Sentences about a node, of which the first has its name and bytes. */
  figures?(node: FlameNode): string;
}

/** Show an icicle of a model. Returns a function that draws it again. */
export function createIcicle(
  root: HTMLElement, model: Model, selection: Selection, icicle: Icicle,
): () => void {
  const { device } = model;
  const { blocks } = device;
  let tree: FlameNode | null = null;
  let treeKey = "";
  let zoomed: number[] = []; // the nodes from the root to the one that is zoomed to
  let focused: FlameNode | null = null;
  let wantsFocus = false;
  let shown = new Map<HTMLElement, FlameNode>();

  const title = element("h2");
  const back = button("Show all (Escape)", () => zoomTo(null));
  root.append(element("div", { class: "flame-head" }, title, back));
  const showFound = createFilterBar(root, selection, [], icicle.example);
  root.querySelector(".filter label")!.after(...icicle.options);
  const hint = element("p", { class: "faint" });
  const boxes = element("div", { class: "flame", role: "tree", "aria-label": icicle.label });
  root.append(hint, boxes);

  const ask = drawWhenNeeded(root, selection, draw);
  boxes.addEventListener("keydown", onKey);
  boxes.addEventListener("click", (event) => {
    const node = shown.get((event.target as Element).closest<HTMLElement>(".flame-box")!);
    if (node) zoomTo(node);
  });
  return ask;

  function draw(): void {
    const { entry } = selection.state;
    const key = [entry, selection.colour, icicle.key()].join(" ");
    if (treeKey !== key || !tree) {
      tree = icicle.tree(activeAt(blocks, entry), groupsOf(model, selection.colour).of);
      treeKey = key;
      focused = null;
    }
    const top = nodeAt(tree, zoomed);
    const width = Math.max(boxes.clientWidth - 2, 100);
    const found = flameBoxes(top, LEAST_PIXELS / width, MOST_ROWS);
    const matches = matcher();
    if (!focused || !found.some(({ node }) => node === focused)) focused = top;
    shown = new Map(found.map((box) => [boxElement(box, top, width, matches), box.node]));
    boxes.replaceChildren(...shown.keys());
    if (wantsFocus) for (const [box, node] of shown) if (node === focused) box.focus();
    wantsFocus = false;
    writeTexts(tree, top, matches);
  }

  /** Return the node at a path of frames, or the last one on the path that exists. */
  function nodeAt(from: FlameNode, path: readonly number[]): FlameNode {
    let node = from;
    for (const frame of path) {
      const child = node.children.find((one) => one.frame === frame);
      if (!child) break;
      node = child;
    }
    return node;
  }

  function matcher(): ((node: FlameNode) => boolean) | null {
    const words = parseFilter(selection.state.filter).terms.filter((term) => term.kind === "word");
    if (words.length === 0) return null;
    return (node) => {
      const text = icicle.nameOf(node).toLowerCase();
      return words.every((word) => text.includes(word.text));
    };
  }

  function describe(node: FlameNode): string {
    const name = node.frame === ROOT ? "All active memory" : icicle.nameOf(node);
    return `${name}: ${size(node.bytes)}, ${shareOf(node)}, ${counted(node.count, "block")}` +
      (icicle.figures?.(node) ?? "");
  }

  function shareOf(node: FlameNode): string {
    return `${(tree!.bytes > 0 ? (100 * node.bytes) / tree!.bytes : 0).toFixed(1)} %`;
  }

  function boxElement(
    { node, left, width, row }: FlameBox, top: FlameNode, pixels: number,
    matches: ((node: FlameNode) => boolean) | null,
  ): HTMLElement {
    const isFound = matches !== null && node.frame !== ROOT && matches(node);
    const isCaller = node.depth < top.depth;
    const text = describe(node);
    const short = node.frame < 0 ? text : icicle.shortText(node);
    // The name for assistive software contains the visible text.
    const label = node.frame < 0 ? text
      : `${short}, ${shareOf(node)}, ${counted(node.count, "block")}${icicle.figures?.(node) ?? ""}`;
    const isWide = width * pixels > 28;
    const { swatch } = groupsOf(model, selection.colour);
    const colour = node.parent ? `; --swatch: ${colourOf(swatch[node.group]!)}` : "";
    const box = element("div", {
      style: `left: ${left * 100}%; width: ${width * 100}%; top: ${row * ROW_PIXELS}px${colour}`,
      class: `flame-box${isFound ? " is-found" : ""}${isCaller ? " is-caller" : ""}`,
      role: "treeitem", tabindex: node === focused ? "0" : "-1", title: text, "aria-label": label,
      "aria-level": String(node.depth + 1), "aria-selected": String(node === top),
    }, isWide ? short : "");
    if (node.children.length > 0) box.setAttribute("aria-expanded", String(!isCaller || node === top));
    return box;
  }

  function writeTexts(
    all: FlameNode, top: FlameNode, matches: ((node: FlameNode) => boolean) | null,
  ): void {
    const moment = icicle.moment?.() ?? momentText(device, selection.state.entry);
    title.textContent = `${size(all.bytes)} active ${moment}, ${icicle.by}`;
    hint.textContent = all.bytes === 0 ? "No memory is active at this moment."
      : top !== all ? describe(top) : "The width of a box is its bytes, the largest on the left. Click or Enter zooms, arrow keys move.";
    back.hidden = top === all;
    if (matches) {
      const bytes = matchedBytes(all, matches);
      const share = all.bytes > 0 ? Math.round((100 * bytes) / all.bytes) : 0;
      showFound(`${size(bytes)} (${share} %) below boxes with this text`, "");
    } else showFound("", "");
  }

  function zoomTo(node: FlameNode | null): void {
    zoomed = [];
    for (let at = node; at?.parent; at = at.parent) zoomed.unshift(at.frame);
    focused = node;
    wantsFocus = boxes.contains(document.activeElement) || document.activeElement === back;
    ask();
  }

  function onKey(event: KeyboardEvent): void {
    if (!focused || event.ctrlKey || event.altKey || event.metaKey) return;
    const siblings = focused.parent?.children ?? [focused];
    const place = siblings.indexOf(focused);
    const targets: Record<string, FlameNode | null | undefined> = {
      ArrowUp: focused.parent, ArrowDown: focused.children[0],
      ArrowLeft: siblings[place - 1], ArrowRight: siblings[place + 1], Home: tree,
    };
    if (event.key === "Enter" || event.key === " ") zoomTo(focused);
    else if (event.key === "Escape" && zoomed.length > 0) zoomTo(null);
    else if (event.key in targets) {
      const target = targets[event.key];
      const box = [...shown].find(([, node]) => node === target)?.[0];
      if (target && box) {
        for (const one of shown.keys()) one.tabIndex = -1;
        focused = target;
        box.tabIndex = 0;
        box.focus();
      }
    } else return;
    event.preventDefault();
    event.stopPropagation(); // the page's arrow keys move through time
  }
}
