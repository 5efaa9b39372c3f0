/** The panel of the selected block: what it is, how long it lived, and where it came from. */

import {
  allocatedText, blockSize, categoryText, eventText, freedText, longLifeText, stateText,
} from "./block_texts.ts";
import { button, factList } from "./elements.ts";
import { framePlace } from "./frame_place.ts";
import { stepAt, type Model } from "./model.ts";
import type { Selection } from "./selection.ts";
import { address, counted, frameText, siteText, size } from "./text.ts";
import { drawWhenNeeded, element } from "./view.ts";

/** Why a rule decides a block's category: the facts of docs/explanation/owners.md, in short. */
const RULES: Readonly<Record<string, string>> = {
  module: "the tensor belongs to a module",
  optimizer: "the tensor belongs to an optimizer",
  grad: "the tensor is the gradient of a parameter",
  several: "the block has tensors of different categories",
  cublas: "torch keeps the block as a cuBLAS workspace",
  no_owner: "no known tensor is in the block",
  too_new: "the block was allocated while the owners were being read",
  batch: "a DataLoader or a distributed module made the block",
  from_forward: "allocated inside a module's call, and not freed since",
  freed_by_node: "the backward pass freed the block",
  call_site: "all earlier blocks of this call stack and size were activations",
  within_forward: "allocated and freed inside a module's call",
  within_optimizer: "allocated and freed inside the optimizer's step",
  within_backward: "allocated and freed inside the backward pass",
  zero_grad: "zero_grad freed the block",
  fsdp_gather: "FSDP2 gathered parameters into the block",
  fsdp_reduce: "the block has a gradient that FSDP2 reduced",
  autocast_cache: "the block is a copy of a parameter that autocast kept",
  ddp_bucket: "DistributedDataParallel allocated the block as a bucket",
  no_fact: "no recorded fact says what it is",
};

/** Show the selected block of a model. */
export function createDetail(root: HTMLElement, model: Model, selection: Selection): void {
  const { device, file } = model;
  const { blocks, events } = device;
  root.classList.add("detail");
  root.id = "detail";
  let shown = "";

  // The panel is hidden while it is empty: the column around it says when to draw.
  drawWhenNeeded(root.parentElement!, selection, () => {
    const { block, entry } = selection.state;
    const isKnown = block !== null && block < blocks.count;
    const key = isKnown ? `${block} ${stateText(model, block, entry)}` : "";
    if (key === shown) return;
    shown = key;
    root.replaceChildren(...(isKnown ? content(block, entry) : []));
  });

  function content(block: number, entry: number): Node[] {
    const alloc = blocks.alloc_event[block]!;
    const free = blocks.free_requested_event[block]!;
    const stack = blocks.stack[block]!;
    const site = file.stacks.site[stack]!;
    const isFreed = free >= 0 && free < events.count;
    return [
      element("div", { class: "bar" },
        element("h2", {}, `Block ${block.toLocaleString("en-US")}: ${blockSize(model, block)}`),
        button("Close", () => selection.update({ block: null }))),
      factList(factsOf(block, entry)),
      element("div", { class: "bar actions" },
        "Go to",
        button("Allocation", () => selection.update({ entry: Math.max(alloc + 1, 0) })),
        ...(isFreed
          ? [button("Free", () => selection.update({ entry: free + 1 }))] : []),
        ...(site > 0 ? [button("Its call site's blocks", () => selection.update({
          tab: "blocks", filter: `state:all "${file.sites[site]!.replaceAll('"', "")}"` }))] : [])),
      ...stackParts("Allocation", stack, site),
      ...(isFreed ? stackParts("Free", events.stack[free]!, -1) : []),
    ];
  }

  function factsOf(block: number, entry: number): [string, string][] {
    const alloc = blocks.alloc_event[block]!;
    const free = blocks.free_requested_event[block]!;
    const completed = blocks.free_event[block]!;
    const bytes = blocks.size_bytes[block]!;
    const added = blocks.is_sized[block] ? bytes - blocks.requested_bytes[block]! : 0;
    const [, rule] = file.kinds[blocks.kind[block]!]!;
    const isFreed = free >= 0 && free < events.count;
    const step = alloc >= 0 ? stepAt(device, alloc) : null;
    const phase = file.phases[blocks.phase[block]!]!;
    const born = [`${alloc >= 0 ? "by event " : ""}${allocatedText(model, block)}`];
    if (step) born.push(`in step ${step[0]}`);
    if (phase) born.push(`phase ${phase}`);
    let reusable = "";
    // Without a stream to wait for, the free is complete in the next event.
    if (isFreed && completed >= events.count) reusable = "not in this file: a stream still uses it";
    else if (isFreed && completed > free + 1) {
      reusable = `after event ${eventText(model, completed)}, when its streams had finished`;
    }
    const requested = size(blocks.requested_bytes[block]!);
    return [
      ["Category", `${categoryText(model, block)}${rule ? `: ${RULES[rule] ?? rule}` : ""}`],
      ["Owner", file.strings[blocks.owner[block]!]!],
      ["Holder", file.strings[blocks.holder[block]!]!],
      ["Call site", siteText(file, blocks.stack[block]!)],
      ["State now", stateText(model, block, entry)],
      ["Size", blockSize(model, block) + (bytes >= 1024 ? ` (${counted(bytes, "byte")})` : "")],
      ["Requested", requested + (added > 0 ? `; the allocator added ${size(added)}` : "")],
      ["Allocated", born.join(", ")],
      ["Freed", `${isFreed ? "by event " : ""}${freedText(model, block)}`],
      ["Reusable", reusable],
      ["Life", longLifeText(model, block)],
      ["Address", address(device, blocks.address[block]!)],
      ["Stream", String(blocks.stream[block]!)],
      ["Pool", poolText(blocks.pool[block]!)],
    ];
  }

  function poolText(pool: number): string {
    const id = file.pools[pool];
    return id && (id[0] !== 0 || id[1] !== 0) ? `private pool ${id.join(", ")}` : "";
  }

  /** The call stack, and that of the forward call for memory of the backward pass. */
  function stackParts(name: string, stack: number, site: number): Node[] {
    const { forward, node, is_exact } = file.stacks;
    const parts: Node[] = [stackList(`${name}: call stack, innermost call first`, stack, site)];
    const source = forward[stack]!;
    if (source > 0) {
      const nodeName = file.strings[node[stack]!]!;
      const title = is_exact[stack]
        ? `${name}: the forward call that made the backward's node${nodeName && ` ${nodeName}`}`
        : `${name}: the forward call of a node near the backward's node${nodeName && ` ${nodeName}`}`;
      parts.push(stackList(title, source, site));
    }
    return parts;
  }

  function stackList(title: string, stack: number, site: number): HTMLElement {
    const { offsets, frame } = file.stacks;
    const frames = [...frame.subarray(offsets[stack]!, offsets[stack + 1]!)];
    const siteName = site > 0 ? file.sites[site]! : "";
    let isMarked = false;
    const lines = frames.map((one) => {
      const isSite = !isMarked && siteName !== "" && isSiteOf(one, siteName);
      isMarked ||= isSite;
      const name = file.strings[file.frames.name[one]!]!;
      return element("li", { class: isSite ? "is-site" : "", title: frameText(file, one) },
        `${name} `, element("span", { class: "faint" }, framePlace(file, one)));
    });
    const empty = element("p", { class: "faint" }, "The file has no call stack of this event.");
    const list = lines.length > 0 ? element("ol", { class: "stack" }, ...lines) : empty;
    return element("details", { open: "" }, element("summary", {}, title), list);
  }

  /** Whether a frame is the one that a call site, "folder/file.py:12 function", names. */
  function isSiteOf(frame: number, site: string): boolean {
    const { filename, name, line } = file.frames;
    const fileName = file.strings[filename[frame]!]!.split(/[/\\]/).pop()!;
    return site.includes(`${fileName}:${line[frame]} `) && site.includes(file.strings[name[frame]!]!);
  }
}
