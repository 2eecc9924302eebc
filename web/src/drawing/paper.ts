// On paper: one light figure, whose pictures are drawn anew at the size of a sheet, as lines and letters.
import { paper } from "../state/appearance";
import { Pen, pens } from "./pen";

function show(now: boolean): void {
  // the style sheet first: panes measure their rooms
  document.documentElement.classList.toggle("paper", now);
  document.querySelectorAll(".drawn").forEach((picture) => picture.remove());
  paper.value = now;
  if (!now) return;
  pens.value = new Map(Array.from(document.querySelectorAll(".matrix canvas, .heads canvas"), (canvas) => [canvas as HTMLCanvasElement, new Pen()]));
  pens.value.forEach((pen, canvas) => canvas.insertAdjacentHTML("afterend", `<svg class="drawn" viewBox="0 0 ${canvas.clientWidth} ${canvas.clientHeight}">${pen.svg}</svg>`));
  pens.value = null;
}

export function followPaper(): void {
  addEventListener("beforeprint", () => show(true));
  addEventListener("afterprint", () => show(false));
}
