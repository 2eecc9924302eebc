// Helpers of all canvases: size on the screen, the theme's colours, fitted text, numbers as pixels.
import { useEffect } from "preact/hooks";
import { effect, untracked } from "@preact/signals";
import { paint } from "../drawing/colour";
import { pens } from "../drawing/pen";
import { paper } from "../state/appearance";
import * as state from "../state/state";
import { letters } from "../words";

/** Measure now, and whenever elements have another size, on the screen and on paper. Returns what stops it. */
export function sized(measure: () => void, ...elements: (Element | null)[]): () => void {
  const observer = new ResizeObserver(measure);
  elements.forEach((element) => observer.observe(element!));
  const stop = effect(() => {
    void paper.value;
    untracked(measure);
  });
  return () => {
    observer.disconnect();
    stop();
  };
}

/** Effects for as long as a component is on the page, begun again where an input changes; `begin` returns what stops each. */
export const useStops = (begin: () => (() => void)[], inputs: unknown[] = []): void => useEffect(() => {
  const stops = begin();
  return () => stops.forEach((stop) => stop());
}, inputs);

/** Listen; returns what stops it. */
export function heard<Name extends keyof HTMLElementEventMap>(element: HTMLElement, name: Name, act: (event: HTMLElementEventMap[Name]) => void, options: AddEventListenerOptions): () => void {
  element.addEventListener(name, act, options);
  return () => element.removeEventListener(name, act);
}

/** Scroll a place of an element into its middle, unless it is in sight. */
export function intoSight(element: HTMLElement, y: number, high = 20): void {
  if (y < element.scrollTop || y + high > element.scrollTop + element.clientHeight) element.scrollTop = y - element.clientHeight / 2;
}

const scratch = document.createElement("canvas");

/** Draw numbers over a rectangle, with sharp edges between cells. */
export function blit(
  context: CanvasRenderingContext2D, tile: { data: Float32Array; height: number; width: number },
  x: number, y: number, width: number, height: number, most: number, signed: boolean,
): void {
  if (!tile.data.length) return;
  if (scratch.width !== tile.width) scratch.width = tile.width;
  if (scratch.height !== tile.height) scratch.height = tile.height;
  const pixels = paint(tile.data, most, state.scale.peek(), state.dark.peek(), signed);
  scratch.getContext("2d")!.putImageData(new ImageData(pixels, tile.width, tile.height), 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(scratch, x, y, width, height);
}

const inks = new Map<string, string>();
let inksOf: string | undefined;

/** A colour or font of the theme, from the style sheet. */
export function ink(element: Element, name: string): string {
  const { theme } = document.documentElement.dataset;
  if (theme !== inksOf) {
    inks.clear();
    inksOf = theme;
  }
  let ink = inks.get(name);
  if (ink === undefined) {
    ink = getComputedStyle(element).getPropertyValue(name).trim();
    inks.set(name, ink);
  }
  return ink;
}

/** An empty canvas of this size in the page's pixels, or its figure while one is made. Its memory is reused if the size is unchanged. */
export function fresh(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const pen = pens.value?.get(canvas);
  if (pen) return pen.reset() as unknown as CanvasRenderingContext2D;
  const ratio = devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  const context = canvas.getContext("2d")!;
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  } else {
    context.reset();
  }
  context.scale(ratio, ratio);
  return context;
}

/** Cut text to a width, without splitting grapheme clusters. */
export function fitted(context: CanvasRenderingContext2D, text: string, most: number): string {
  if (context.measureText(text).width <= most) return text;
  const all = letters(text);
  const cut = (count: number): string => `${all.slice(0, count).join("")}…`;
  let [fits, over] = [1, all.length];
  while (over - fits > 1) {
    const middle = (fits + over) >> 1;
    if (context.measureText(cut(middle)).width <= most) fits = middle;
    else over = middle;
  }
  return cut(fits);
}
