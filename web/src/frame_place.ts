/** The place of a frame, short enough for a line. */

import type { FileData } from "./model.ts";

/** Return where a frame is, as call sites are written: "models/llama.py:123"; "" if unknown. */
export function framePlace({ frames, strings }: FileData, frame: number): string {
  const path = strings[frames.filename[frame]!]!;
  if (path === "" || path === "??") return "";
  const line = frames.line[frame]!;
  const short = path.split(/[/\\]/).slice(-2).join("/");
  return line ? `${short}:${line}` : short;
}
