// On paper: one light figure, whose pictures are drawn anew at the size of a sheet, as lines and letters.
import { paper } from "../state/appearance";
import { Pen, pens } from "./pen";

function show(now: boolean): void {
  if (now === paper.peek()) return;
  // the style sheet first: panes measure their rooms
  document.documentElement.classList.toggle("paper", now);
  document.querySelectorAll(".drawn").forEach((picture) => picture.remove());
  paper.value = now;
  if (!now) return;
  pens.value = new Map(Array.from(document.querySelectorAll<HTMLCanvasElement>(".matrix canvas, .heads canvas"), (canvas) => [canvas, new Pen()]));
  for (const [canvas, pen] of pens.value) {
    const { clientWidth, clientHeight } = canvas;
    canvas.insertAdjacentHTML("afterend", `<svg class="drawn ${canvas.className}" viewBox="0 0 ${clientWidth} ${clientHeight}">${pen.svg}</svg>`);
  }
  pens.value = null;
}

export function followPaper(): void {
  addEventListener("beforeprint", () => show(true));
  addEventListener("afterprint", () => show(false));
  matchMedia("print").addEventListener("change", ({ matches }) => show(matches));
}
