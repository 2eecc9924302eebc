// Words under the pointer: to point at one previews, a click pins, Shift and a click adds it to the set, dragging takes a passage.
import { choose, choosePassage, pin, sides, type Side } from "../heads/asking";
import { adding } from "../heads/several";
import type { Label } from "../text/shown";

/** The passage that is being dragged over. */
let passage: { side: Side; start: number; moved: boolean } | null = null;
addEventListener("pointerup", () => { setTimeout(() => { passage = null; }); });

/** The place of the word that an event is about: elements of words have it as `data-at`. */
export function placeAt(event: Event): number | null {
  const found = (event.target as HTMLElement).closest<HTMLElement>("[data-at]")?.dataset.at;
  return found === undefined ? null : Number(found);
}

/** The tokens from one word to another. */
export const between = (labels: Label[], a: number, b: number): number[] => labels.slice(Math.min(a, b), Math.max(a, b) + 1).flatMap(({ tokens }) => tokens);

/** The handlers of an element that holds the words of a side. */
export function pointed(side: Side, labels: Label[], pinning = (): void => undefined) {
  const { hover } = sides(side);
  return {
    onPointerOver(event: PointerEvent): void {
      const n = placeAt(event);
      hover.value = n;
      if (n === null || passage?.side !== side || !(event.buttons & 1) || n === passage.start) return;
      passage.moved = true;
      choosePassage(side, between(labels, passage.start, n));
    },
    onPointerLeave(): void { hover.value = null; },
    onPointerDown(event: PointerEvent): void {
      const start = placeAt(event);
      if (start !== null && event.button === 0 && event.pointerType === "mouse") passage = { side, start, moved: false };
    },
    onClick(event: MouseEvent): void {
      const n = placeAt(event);
      if (n === null || passage?.moved) return;
      if (event.shiftKey || adding.value) choose(side, labels[n].tokens);
      else {
        pinning();
        pin(side, n, labels[n]);
      }
    },
  };
}
