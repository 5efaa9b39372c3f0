/**
 * The tree of modules and of what their memory is for: the bytes of blocks by the names in a
 * module's path, and then by category. Equal modules are one node.
 */

import { flameTree, type FlameNode } from "./flame_tree.ts";
import type { Blocks, FileData } from "./model.ts";

type Known = Pick<FileData, "modules" | "categories" | "kinds">;

/** Makes trees of the same file, in which a name has the same number. */
export class ModuleTrees {
  /** For each node's `frame` its name. */
  readonly names: string[] = [];
  private readonly numbers = new Map<string, number>();
  private readonly paths: number[][] = [];
  private readonly columns: Parameters<typeof flameTree>[1];

  constructor(private readonly file: Known, { size_bytes, requested_bytes, module, kind }: Blocks) {
    const { categories, kinds } = file;
    const stack = module.map((path, i) => path * categories.length + kinds[kind[i]!]![0]);
    this.columns = { size_bytes, requested_bytes, stack };
  }

  /** Return the tree of some blocks. */
  tree(blocks: Iterable<number>, groupOf: Uint8Array): FlameNode {
    const root = flameTree(blocks, this.columns, groupOf, (key) => (this.paths[key] ??= this.pathOf(key)));
    this.fold(root, new Map());
    return root;
  }

  private pathOf(key: number): number[] {
    const { modules, categories } = this.file;
    const path = modules[Math.floor(key / categories.length)]!;
    return [...(path ? path.split(".") : ["(no module)"]).map((name) => this.numberOf(name)),
      this.numberOf(categories[key % categories.length]!, "of")];
  }

  /** Return the number of a name; a category and a module with one name are different. */
  private numberOf(name: string, kind = ""): number {
    const key = `${kind} ${name}`;
    let found = this.numbers.get(key);
    if (found === undefined) {
      this.numbers.set(key, (found = this.names.length));
      this.names.push(name);
    }
    return found;
  }

  /**
   * Join children whose names differ in numbers only and that are equal: in their blocks, in the
   * bytes that were requested, and in their categories. Returns what is equal for equal nodes.
   */
  private fold(node: FlameNode, signatures: Map<string, number>): number {
    const alike = new Map<string, FlameNode[]>();
    const parts: string[] = [];
    for (const child of node.children) {
      const name = this.names[child.frame]!;
      const signature = this.fold(child, signatures);
      const key = `${name.replace(/\d+/g, "*")} ${child.children.length > 0} ${signature}`;
      parts.push(`${child.frame}:${signature}`);
      const same = alike.get(key);
      if (same) same.push(child);
      else alike.set(key, [child]);
    }
    node.children = [...alike.values()].map((same) =>
      same.length === 1 ? same[0]! : this.joined(same, node, this.numberOf(this.rangeOf(same))));
    node.children.sort((a, b) => b.bytes - a.bytes || a.frame - b.frame);
    const text = parts.length > 0 ? parts.sort().join() : `${node.requested} ${node.count}`;
    let found = signatures.get(text);
    if (found === undefined) signatures.set(text, (found = signatures.size));
    return found;
  }

  /** Return the names of nodes as one, as in "0–11" of numbers that follow each other, or "*". */
  private rangeOf(nodes: readonly FlameNode[]): string {
    const names = nodes.map(({ frame }) => this.names[frame]!);
    const numbers = names.map(Number).sort((a, b) => a - b);
    const isRow = numbers.every((number, i) => number === numbers[0]! + i);
    return isRow ? `${numbers[0]}–${numbers.at(-1)}` : names[0]!.replace(/\d+/g, "*");
  }

  /** Return equal nodes as one. */
  private joined(same: readonly FlameNode[], parent: FlameNode, frame: number): FlameNode {
    const sum = (of: (node: FlameNode) => number): number => same.reduce((all, each) => all + of(each), 0);
    const node: FlameNode = {
      ...same[0]!, frame, parent, bytes: sum((each) => each.bytes), count: sum((each) => each.count),
      requested: sum((each) => each.requested), times: sum((each) => each.times),
    };
    node.children = same[0]!.children.map((child) => this.joined(
      same.map((each) => each.children.find((other) => other.frame === child.frame)!), node, child.frame));
    return node;
  }
}
