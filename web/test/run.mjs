// Compiles the tests by esbuild, and runs them under node.
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const folder = dirname(dirname(fileURLToPath(import.meta.url)));
const sources = readdirSync(join(folder, "test"))
  .filter((name) => name.endsWith(".test.ts")).map((name) => `test/${name}`);
await build({
  absWorkingDir: folder,
  entryPoints: sources,
  bundle: true,
  platform: "node",
  format: "esm",
  outdir: "build/test",
  outExtension: { ".js": ".mjs" },
});
const outputs = sources.map((name) => join("build", name.replace(/\.ts$/, ".mjs")));
const { status } = spawnSync(process.execPath, ["--test", ...outputs], { cwd: folder, stdio: "inherit" });
process.exit(status ?? 1);
