// A line between two panels that can be dragged, or moved with the arrow keys. Its place is kept in this browser.
import { signal, type Signal } from "@preact/signals";
import { keep, kept } from "../state/kept";
import { say } from "../words";

type Side = "left" | "right";
const LEAST: Record<Side, number> = { left: 220, right: 210 };
/** The middle keeps at least this. */
const MIDDLE = 380;
const STEP = 16;

/** Widths that the reader chose; null is the style sheet's. */
export const widths: Record<Side, Signal<number | null>> = { left: signal(null), right: signal(null) };

/** A width that leaves room for the rest. */
export const within = (side: Side, width: number, page: number, other: number): number =>
  Math.round(Math.max(LEAST[side], Math.min(width, page - other - MIDDLE)));

const keepWidths = (): void => keep("widths", { left: widths.left.value, right: widths.right.value });

export function restoreWidths(): void {
  const found = kept("widths") as Partial<Record<Side, unknown>> | null;
  for (const side of ["left", "right"] as const) {
    const width = found?.[side];
    if (typeof width === "number" && Number.isFinite(width)) widths[side].value = Math.max(LEAST[side], Math.min(width, 900));
  }
}

const panelOf = (side: Side): HTMLElement => document.querySelector<HTMLElement>(side === "left" ? ".grid" : ".inspector")!;

function set(side: Side, width: number): void {
  const other = panelOf(side === "left" ? "right" : "left").offsetWidth;
  widths[side].value = within(side, width, innerWidth, other);
}

export function Divider({ side }: { side: Side }) {
  const sign = side === "left" ? 1 : -1;
  const now = widths[side].value;
  const free = (): void => {
    widths[side].value = null;
    keepWidths();
  };
  return (
    <div
      class={`divider ${side}`} role="separator" tabIndex={0} aria-orientation="vertical" aria-label={say(`divider_${side}`)} data-test={`divider-${side}`}
      aria-valuenow={now ?? LEAST[side]} aria-valuemin={LEAST[side]} title={say(`divider_${side}`)}
      onPointerDown={(event) => {
        event.preventDefault();
        const handle = event.currentTarget;
        const [start, from] = [event.clientX, panelOf(side).offsetWidth];
        const move = (later: PointerEvent): void => set(side, from + sign * (later.clientX - start));
        const stop = (): void => {
          handle.removeEventListener("pointermove", move);
          keepWidths();
        };
        handle.setPointerCapture(event.pointerId);
        handle.addEventListener("pointermove", move);
        handle.addEventListener("lostpointercapture", stop, { once: true });
      }}
      onKeyDown={(event) => {
        const by = event.key === "ArrowRight" ? STEP : event.key === "ArrowLeft" ? -STEP : 0;
        if (!by && event.key !== "Home") return;
        event.preventDefault();
        event.stopPropagation();
        if (!by) return free();
        set(side, panelOf(side).offsetWidth + sign * by);
        keepWidths();
      }}
      onDblClick={free}
    />
  );
}
