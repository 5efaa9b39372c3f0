import assert from "node:assert/strict";
import { test } from "node:test";

import type { FlameNode } from "../src/flame_tree.ts";
import { ModuleTrees } from "../src/module_tree.ts";

const MIB = 2 ** 20;
const file = {
  modules: ["", ...Array.from({ length: 12 }, (_, i) => `layers.${i}.attn`), "head", "layers.mask"],
  categories: ["parameter", "activation", "optimizer state"],
  kinds: [[0, ""], [1, ""], [2, ""]] as [number, string][],
};

/** Return the tree of blocks: a module, a category, the bytes, and what was requested of them. */
function treeOf(blocks: readonly (readonly [number, number, number, number])[]) {
  const column = (i: number) => Float64Array.from(blocks, (block) => block[i]!);
  const trees = new ModuleTrees(file, {
    module: Uint32Array.from(column(0)), kind: Uint8Array.from(column(1)), size_bytes: column(2),
    requested_bytes: column(3),
  } as never);
  const root = trees.tree(blocks.keys(), new Uint8Array(blocks.length));
  const found: [string, number, number, number][] = [];
  const visit = (node: FlameNode, path: string): void => {
    for (const child of node.children) {
      const name = `${path}${trees.names[child.frame]}`;
      found.push([name, child.times, child.bytes / MIB, child.count]);
      assert.equal(child.parent, node);
      visit(child, `${name}/`);
    }
  };
  visit(root, "");
  return found;
}

test("equal modules are one node, with the bytes of all", () => {
  // All layers request equal bytes; the allocator gave one of them more.
  const layers = Array.from({ length: 12 }, (_, i) =>
    [[1 + i, 0, (i ? 2 : 3) * MIB, 2 * MIB], [1 + i, 2, MIB, MIB]] as const).flat();
  assert.deepEqual(treeOf([...layers, [13, 0, 9 * MIB, 9 * MIB]]), [
    ["layers", 1, 37, 24],
    ["layers/0–11", 12, 37, 24],
    ["layers/0–11/attn", 12, 37, 24],
    ["layers/0–11/attn/parameter", 12, 25, 12],
    ["layers/0–11/attn/optimizer state", 12, 12, 12],
    ["head", 1, 9, 1],
    ["head/parameter", 1, 9, 1],
  ]);
});

test("a module that differs is a node of its own, and so is what has no module", () => {
  const layers = Array.from({ length: 6 }, (_, i) => [1 + i, 0, MIB, MIB] as const);
  const extra = [[3, 1, MIB / 2, MIB / 2], [0, 1, MIB / 4, MIB / 4], [14, 0, MIB, MIB]] as const;
  const tree = treeOf([...layers, ...extra]);
  assert.deepEqual(tree.filter(([path]) => path.split("/").length <= 2), [
    ["layers", 1, 7.5, 8],
    // The layers that are alike do not follow each other.
    ["layers/*", 5, 5, 5],
    ["layers/2", 1, 1.5, 2],
    ["layers/mask", 1, 1, 1],
    ["(no module)", 1, 0.25, 1],
    ["(no module)/activation", 1, 0.25, 1],
  ]);
});
