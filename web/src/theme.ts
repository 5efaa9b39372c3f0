/**
 * The theme of the page: the one that the browser prefers, or in a notebook the notebook's, which the
 * reader may have chosen otherwise.
 */

const PREFERENCE = "(prefers-color-scheme: dark)";

let known: boolean | null = null; // asked for each block: a query takes long

/** Return whether the page is dark. */
export function isDark(): boolean {
  return (known ??= notebookIsDark() ?? matchMedia(PREFERENCE).matches);
}

/** Call a function after each change of the theme. */
export function onTheme(changed: () => void): void {
  const again = (): void => {
    const before = known;
    known = null;
    apply();
    if (isDark() !== before) changed();
  };
  apply();
  matchMedia(PREFERENCE).addEventListener("change", again);
  const outside = notebook()?.ownerDocument;
  if (!outside) return;
  // A notebook marks its theme at these elements, and may load its colours a moment later.
  const watch = new MutationObserver(() => {
    again();
    setTimeout(again, 500);
  });
  for (const each of [outside.documentElement, outside.body]) watch.observe(each, { attributes: true });
}

/** Return the element of the notebook that has the page; null if the page is not in a notebook. */
function notebook(): Element | null {
  if (location.protocol !== "about:") return null;
  try {
    return frameElement;
  } catch {
    return null;
  }
}

/** Return whether a notebook writes light text; null without a notebook. */
function notebookIsDark(): boolean | null {
  const outside = notebook();
  if (!outside) return null;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d")!;
  context.fillStyle = getComputedStyle(outside).color; // in any of CSS's notations
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue] = context.getImageData(0, 0, 1, 1).data;
  return 0.3 * red! + 0.59 * green! + 0.11 * blue! > 128;
}

/** In a notebook, let the rules of the dark theme hold or not as the notebook has it. */
function apply(): void {
  const isDarkThere = notebookIsDark();
  if (isDarkThere === null) return;
  document.documentElement.style.colorScheme = isDarkThere ? "dark" : "light";
  for (const rule of document.styleSheets[0]!.cssRules) {
    if (!(rule instanceof CSSMediaRule) || !/prefers-color-scheme|^(not )?all$/.test(rule.conditionText)) continue;
    rule.media.mediaText = isDarkThere ? "all" : "not all";
  }
}
