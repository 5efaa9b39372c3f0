/** Writes a page of a synthetic trace: `npm run example -- PROGRAM EVENTS OUTPUT [RANKS]`. */

import { writeFileSync } from "node:fs";
import { pageHtml } from "./encode.ts";
import { exampleFile, pageOf, type Program } from "./example.ts";

const [program = "training", events = "20000", output = "build/example.html", ranks = "1"] =
  process.argv.slice(2);
const files = Array.from({ length: Number(ranks) }, (_, i) =>
  exampleFile(program as Program, Number(events), i + 1),
);
writeFileSync(output, pageHtml("../pytracer/page/template.html", pageOf(files), files));
