// A line between two panels that can be dragged, or moved with the arrow keys. Its place is kept in this browser.
import { keeping } from "../state/kept";
import { say } from "../words";

type Side = "left" | "right";
const LEAST: Record<Side, number> = { left: 220, right: 210 };
/** The most that is kept for another window, and the least that the middle keeps. */
const MOST = 900;
const MIDDLE = 380;
const STEP = 16;

/** Widths that the reader chose; null is the style sheet's. */
export const widths = keeping("widths", (found): Record<Side, number | null> => {
  const read = (side: Side): number | null => {
    const width = (found as Partial<Record<Side, unknown>> | null)?.[side];
    return typeof width === "number" ? Math.max(LEAST[side], Math.min(width, MOST)) : null;
  };
  return { left: read("left"), right: read("right") };
});

const panelOf = (side: Side): HTMLElement => document.querySelector<HTMLElement>(side === "left" ? ".grid" : ".inspector")!;

/** A width that leaves room for the rest. */
function set(side: Side, width: number): void {
  const other = panelOf(side === "left" ? "right" : "left").offsetWidth;
  widths.value = { ...widths.value, [side]: Math.round(Math.max(LEAST[side], Math.min(width, innerWidth - other - MIDDLE))) };
}

export function Divider({ side }: { side: Side }) {
  const sign = side === "left" ? 1 : -1;
  const now = widths.value[side];
  const free = (): void => { widths.value = { ...widths.value, [side]: null }; };
  return (
    <div
      class={`divider ${side}`} role="separator" tabIndex={0} aria-orientation="vertical" aria-label={say(`divider_${side}`)} data-test={`divider-${side}`}
      aria-valuenow={now ?? LEAST[side]} aria-valuemin={LEAST[side]} title={say(`divider_${side}`)}
      onPointerDown={(event) => {
        event.preventDefault();
        const handle = event.currentTarget;
        const [start, from] = [event.clientX, panelOf(side).offsetWidth];
        const move = (later: PointerEvent): void => set(side, from + sign * (later.clientX - start));
        handle.setPointerCapture(event.pointerId);
        handle.addEventListener("pointermove", move);
        handle.addEventListener("lostpointercapture", () => handle.removeEventListener("pointermove", move), { once: true });
      }}
      onKeyDown={(event) => {
        const by = event.key === "ArrowRight" ? STEP : event.key === "ArrowLeft" ? -STEP : 0;
        if (!by && event.key !== "Home") return;
        event.preventDefault();
        event.stopPropagation();
        if (!by) return free();
        set(side, panelOf(side).offsetWidth + sign * by);
      }}
      onDblClick={free}
    />
  );
}
