/**
 * The tree of a flame graph: the bytes of blocks by call stack.
 *
 * The bytes of a node's children add up to the node's bytes, and the root's bytes are those of all
 * blocks, also of blocks without a call stack.
 */

import type { Blocks, FileData } from "./model.ts";

/** One frame with the bytes of all blocks below it. */
export interface FlameNode {
  /** The frame's number; `ROOT`, `NO_STACK` or `CUT`. */
  frame: number;
  bytes: number;
  /** The bytes that the program requested; 0 if the tree is made without them. */
  requested: number;
  count: number;
  /** How many equal nodes this one stands for. */
  times: number;
  /** The group of the blocks of one call stack that have the most bytes below the node. */
  group: number;
  /** Their bytes. */
  most: number;
  depth: number;
  parent: FlameNode | null;
  /** The largest first. */
  children: FlameNode[];
}

export const ROOT = -1;
export const NO_STACK = -2;
/** The caller of stacks of which only the innermost frames were recorded. */
export const CUT = -3;

/** Which frames a flame graph has, and in which order. */
export interface FlameOptions {
  /** Also those of torch and of libraries, which are else left out of stacks of the program. */
  hasLibraries: boolean;
  /** The call sites first, and then their callers. */
  isInverted: boolean;
}

/** Return a function that gives the frames of a call stack, from the root on. */
export function pathsOf(
  { stacks, frames, stack_depth }: Pick<FileData, "stacks" | "frames" | "stack_depth">,
  { hasLibraries, isInverted }: FlameOptions,
): (stack: number) => number[] {
  const known: number[][] = []; // while the moment moves, the same stacks are asked for
  const pathOf = (stack: number): number[] => {
    const all = stacks.frame.subarray(stacks.offsets[stack]!, stacks.offsets[stack + 1]!);
    const own = all.filter((frame) => hasLibraries || frames.is_program[frame]);
    const path: number[] = [...(own.length > 0 ? own : all)];
    if (path.length === 0) path.push(NO_STACK);
    else if (stack_depth > 0 && all.length >= stack_depth) path.push(CUT);
    return isInverted ? path : path.reverse();
  };
  return (stack) => (known[stack] ??= pathOf(stack));
}

type Columns = Pick<Blocks, "size_bytes" | "stack"> & Partial<Pick<Blocks, "requested_bytes">>;

/** Return the tree of some blocks; `groupOf` has the group of each block: at most 256. */
export function flameTree(
  blocks: Iterable<number>, { size_bytes, requested_bytes, stack: stackOf }: Columns,
  groupOf: Uint8Array, pathOf: (stack: number) => number[],
): FlameNode {
  const bytes = new Map<number, number>();
  const requests = new Map<number, number>();
  const counts = new Map<number, number>();
  for (const block of blocks) {
    const part = stackOf[block]! * 256 + groupOf[block]!;
    bytes.set(part, (bytes.get(part) ?? 0) + size_bytes[block]!);
    if (requested_bytes) requests.set(part, (requests.get(part) ?? 0) + requested_bytes[block]!);
    counts.set(part, (counts.get(part) ?? 0) + 1);
  }
  const root = newNode(ROOT, null);
  const index = new Map<FlameNode, Map<number, FlameNode>>();
  const childOf = (node: FlameNode, frame: number): FlameNode => {
    let children = index.get(node);
    if (!children) index.set(node, (children = new Map()));
    let child = children.get(frame);
    if (!child) {
      child = newNode(frame, node);
      children.set(frame, child);
      node.children.push(child);
    }
    return child;
  };
  for (const [part, size] of bytes) {
    const [stack, group, count] = [Math.floor(part / 256), part % 256, counts.get(part)!];
    const add = (node: FlameNode): void => {
      node.bytes += size;
      node.requested += requests.get(part) ?? 0;
      node.count += count;
      if (size <= node.most) return;
      node.most = size;
      node.group = group;
    };
    let node = root;
    add(node);
    for (const frame of pathOf(stack)) {
      node = childOf(node, frame);
      add(node);
    }
  }
  for (const node of index.keys()) {
    node.children.sort((a, b) => b.bytes - a.bytes || a.frame - b.frame);
  }
  return root;
}

function newNode(frame: number, parent: FlameNode | null): FlameNode {
  const depth = parent ? parent.depth + 1 : 0;
  return { frame, bytes: 0, requested: 0, count: 0, times: 1, group: 0, most: 0, depth, parent, children: [] };
}

/** A node with its place: `left` and `width` are parts of the drawn node's width, from 0 to 1. */
export interface FlameBox {
  node: FlameNode;
  left: number;
  width: number;
  row: number;
}

/**
 * Return the boxes to draw: `top` over the full width, its callers above it, its callees below.
 *
 * @param least The least width of a box; narrower ones are left out with all below them, so that
 *   the number of boxes has a bound.
 */
export function flameBoxes(top: FlameNode, least: number, mostRows: number): FlameBox[] {
  const boxes: FlameBox[] = [];
  for (let node = top.parent; node; node = node.parent) {
    boxes.unshift({ node, left: 0, width: 1, row: node.depth });
  }
  const place = (node: FlameNode, left: number, width: number): void => {
    boxes.push({ node, left, width, row: node.depth });
    if (node.depth - top.depth >= mostRows) return;
    let at = left;
    for (const child of node.children) {
      const share = node.bytes > 0 ? (width * child.bytes) / node.bytes : 0;
      if (share < least) break; // the largest come first
      place(child, at, share);
      at += share;
    }
  };
  place(top, 0, 1);
  return boxes;
}

/** Return the bytes of all nodes that match, without counting a node inside another twice. */
export function matchedBytes(root: FlameNode, matches: (node: FlameNode) => boolean): number {
  if (root.frame !== ROOT && matches(root)) return root.bytes;
  let bytes = 0;
  for (const child of root.children) bytes += matchedBytes(child, matches);
  return bytes;
}
