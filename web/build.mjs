// Builds pytracer/page/template.html: one file, which holds the JavaScript and the CSS.
//
// The output depends on the sources and on the locked versions only, so that CI can build it again
// and compare. The Content-Security-Policy allows the page's own script by its hash. A script that
// a hostile text puts into the page has another hash, and the browser does not run it.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const folder = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(folder, "..", "pytracer", "page", "template.html");

const result = await build({
  absWorkingDir: folder,
  entryPoints: ["src/main.ts"],
  bundle: true,
  format: "iife",
  target: ["chrome109", "firefox115"],
  minify: true,
  charset: "ascii",
  legalComments: "none",
  outdir: "build",
  write: false,
});
const text = (suffix) => result.outputFiles.find((file) => file.path.endsWith(suffix)).text.trim();
// In a script element, "</script" and "<!--" would end or hide the script.
const script = text(".js").replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
const hash = createHash("sha256").update(script, "utf8").digest("base64");
const parts = {
  POLICY:
    `default-src 'none'; script-src 'sha256-${hash}'; style-src 'unsafe-inline'; ` +
    "img-src data:; base-uri 'none'; form-action 'none'",
  STYLE: text(".css"),
  SCRIPT: script,
};
const page = readFileSync(join(folder, "page.html"), "utf8").replace(
  /%(POLICY|STYLE|SCRIPT)%/g,
  (_, name) => parts[name],
);
mkdirSync(dirname(target), { recursive: true });
writeFileSync(target, page);
