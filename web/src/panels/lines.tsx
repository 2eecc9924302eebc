// Two columns of tokens and lines between them: for each query the fewest keys that hold the chosen mass.
import { useEffect, useRef } from "preact/hooks";
import { effect, useSignal } from "@preact/signals";
import { headColour } from "../colour";
import { strongestKeys } from "../trace/arithmetic";
import { engine } from "../trace/engine";
import { say } from "../words";
import * as state from "../state";
import { column, current, doc, lookedRow, mostOf, row, rowNumbers, shown, wanted, wantedKey } from "../store";
import { ink } from "./matrix";
import type { Label } from "../shown";

const HEIGHT = 22;
const MANY = 6000;

interface Strip { key: string; from: number; to: number; data: Float32Array }

export function Lines() {
  const scroller = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const seen = useSignal({ top: 0, height: 0, width: 0 });
  const strip = useSignal<Strip | null>(null);

  useEffect(() => {
    const element = scroller.current!;
    const look = (): void => {
      seen.value = { top: element.scrollTop, height: element.clientHeight, width: element.clientWidth };
    };
    const observer = new ResizeObserver(look);
    observer.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    const stops = [
      () => observer.disconnect(),
      () => element.removeEventListener("scroll", look),
      effect(fetchStrip),
      effect(draw),
      effect(follow),
    ];
    return () => stops.forEach((stop) => stop());
  }, []);

  /** The pinned query, and the map's window, come into sight. */
  function follow(): void {
    const r = row.value;
    const element = scroller.current;
    if (r === null || !element) return;
    const y = r * HEIGHT;
    if (y < element.scrollTop || y + HEIGHT > element.scrollTop + element.clientHeight) {
      element.scrollTop = Math.max(0, y - element.clientHeight / 2);
    }
  }

  const range = (): [number, number] => {
    const rows = shown.value?.rows.length ?? 0;
    const from = Math.max(0, Math.floor(seen.value.top / HEIGHT) - 4);
    return [Math.min(from, rows), Math.min(rows, Math.ceil((seen.value.top + seen.value.height) / HEIGHT) + 4)];
  };

  /** A long text: only the rows that are seen are computed. */
  function fetchStrip(): void {
    const [now, held] = [wanted.value, current.value];
    if (!now || !held || held.full || !seen.value.height) return;
    const [from, to] = range();
    const key = wantedKey(now);
    if (strip.peek()?.key === key && strip.peek()!.from === from && strip.peek()!.to === to) return;
    engine
      .ask("rows", { trace: now.doc.id, layer: now.layer, head: now.head, view: now.shown.view, from, to, normed: now.normed }, "strip")
      .then((data) => { strip.value = { key, from, to, data }; })
      .catch(() => undefined);
  }

  function draw(): void {
    const element = canvas.current;
    const [picture, now, info] = [current.value, wanted.value, doc.value?.info];
    const { width, height, top } = seen.value;
    if (!element || !picture || !now || !info || !width) return;
    const ratio = devicePixelRatio || 1;
    const wide = element.clientWidth;
    element.width = Math.round(wide * ratio);
    element.height = Math.round(height * ratio);
    const context = element.getContext("2d")!;
    context.scale(ratio, ratio);
    const colour = headColour(now.head, info.heads, state.dark.value);
    const looked = lookedRow.value;
    const onlyKey = looked === null ? (state.hoverColumn.value ?? column.value) : null;
    const [from, to] = range();
    const own = rowNumbers.value;
    const rowAt = (r: number): Float32Array | null => {
      if (picture.full) return picture.full.subarray(r * picture.columns, (r + 1) * picture.columns);
      if (own && own.row === r) return own.data;
      const held = strip.value;
      if (!held || held.key !== wantedKey(now) || r < held.from || r >= held.to) return null;
      return held.data.subarray((r - held.from) * picture.columns, (r - held.from + 1) * picture.columns);
    };
    const y = (at: number): number => (at + 0.5) * HEIGHT - top;
    const most = mostOf(picture);
    const line = (r: number, c: number, weight: number, faint: number): void => {
      const t = Math.min(1, Math.abs(weight) / most);
      context.globalAlpha = faint * Math.min(1, 0.12 + 0.88 * Math.sqrt(t));
      context.lineWidth = 0.6 + 3.4 * t;
      context.beginPath();
      context.moveTo(2, y(r));
      context.bezierCurveTo(wide * 0.4, y(r), wide * 0.6, y(c), wide - 2, y(c));
      context.stroke();
    };
    context.strokeStyle = colour;
    context.lineCap = "round";
    const queries = looked !== null ? [looked] : Array.from({ length: to - from }, (_, n) => from + n);
    let drawn = 0;
    for (const r of queries) {
      const numbers = rowAt(r);
      if (!numbers) continue;
      for (const c of strongestKeys(numbers, state.mass.value)) {
        if (onlyKey !== null && c !== onlyKey) continue;
        if (drawn++ > MANY) return;
        line(r, c, numbers[c], looked !== null || onlyKey !== null ? 1 : 0.75);
      }
    }
    if (looked !== null && column.value !== null) {
      const numbers = rowAt(looked);
      if (numbers) {
        context.strokeStyle = ink(element, "--pin");
        line(looked, column.value, Math.max(numbers[column.value], most * 0.04), 1);
      }
    }
    context.globalAlpha = 1;
  }

  const words = shown.value;
  if (!words) return null;
  const [from, to] = range();
  const columnsTo = Math.min(words.columns.length, to + (words.columns.length > words.rows.length ? 4 : 0));
  const looked = lookedRow.value;
  const numbers = looked !== null && rowNumbers.value?.row === looked ? rowNumbers.value.data : null;
  const info = doc.value!.info;
  const most = current.value ? mostOf(current.value) : 1;
  return (
    <div class="lines" ref={scroller} tabIndex={-1}>
      <div class="tall" style={{ height: `${Math.max(words.rows.length, words.columns.length) * HEIGHT + 8}px` }}>
        <div class="side left" role="listbox" aria-label={say("queries")}>
          {words.rows.slice(from, to).map((label, n) => (
            <Token key={from + n} label={label} at={from + n} side="row" weight={null} colour="" />
          ))}
        </div>
        <canvas ref={canvas} style={{ height: `${seen.value.height}px` }} aria-hidden="true" />
        <div class="side right" role="listbox" aria-label={say("keys")}>
          {words.columns.slice(from, Math.max(to, columnsTo)).map((label, n) => (
            <Token
              key={from + n} label={label} at={from + n} side="column"
              weight={numbers ? numbers[from + n] / most : null}
              colour={headColour(wanted.value?.head ?? 0, info.heads, state.dark.value)}
            />
          ))}
        </div>
      </div>
    </div>
  );
}

function Token({ label, at, side, weight, colour }: {
  label: Label; at: number; side: "row" | "column"; weight: number | null; colour: string;
}) {
  const [hover, pinned, held] = side === "row"
    ? [state.hoverRow, row, state.query] as const
    : [state.hoverColumn, column, state.key] as const;
  const chosen = pinned.value === at;
  return (
    <div
      class={`token${label.special ? " special" : ""}${chosen ? " pinned" : ""}${hover.value === at ? " hovered" : ""}${label.segment === 1 ? " second" : ""}`}
      style={{ top: `${at * HEIGHT}px` }}
      role="option" aria-selected={chosen} title={label.title}
      onPointerEnter={() => { hover.value = at; }}
      onPointerLeave={() => { hover.value = null; }}
      onClick={() => { held.value = chosen ? null : label.tokens[0]; }}
    >
      {weight !== null && <i style={{ width: `${100 * Math.min(1, Math.abs(weight))}%`, background: colour }} />}
      <bdi>{label.continues && <small>·</small>}{label.text}</bdi>
    </div>
  );
}
