/** What all views share: making elements, and drawing at most once a frame. */

import type { Selection } from "./selection.ts";

/**
 * Draw a view now and whenever the selection, the theme or its size changes, at most once a frame.
 *
 * A view that is hidden is drawn when it is shown. `draw` therefore reads the selection itself.
 * Returns a function that asks for another drawing.
 */
export function drawWhenNeeded(
  root: HTMLElement,
  selection: Selection,
  draw: () => void,
): () => void {
  const request = oncePerFrame(() => {
    if (root.isConnected && root.offsetParent !== null) draw();
  });
  selection.subscribe(request);
  new ResizeObserver(request).observe(root);
  request();
  return request;
}

/** Return a function that calls another one once, before the next frame is drawn. */
export function oncePerFrame(draw: () => void): () => void {
  let isAsked = false;
  return () => {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      draw();
    });
  };
}

/** Make an element with attributes, and children: texts (never read as HTML) or elements. */
export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Size a canvas to its element in device pixels, and return its context in CSS pixels, cleared. */
export function prepare(canvas: HTMLCanvasElement, width: number, height: number) {
  const ratio = devicePixelRatio || 1;
  const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
  }
  const context = canvas.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
