// Two columns of tokens with lines between them: for each query, the fewest keys that hold the chosen mass.
import type { RefObject } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { effect, signal, useComputed, useSignal } from "@preact/signals";
import { strongestKeys } from "../trace/strongest";
import { maskOf } from "../text/masking";
import { number, say, type Word } from "../words";
import * as state from "../state/state";
import { current, lookedNumbers, mostOf, rowIn, rowNumbers, rowsOf, wanted, wantedKey } from "../drawing/pictures";
import { column, lookedRow, row, shown } from "../state/store";
import { memberColour } from "../heads/several";
import { rowsAt } from "./matrix";
import { memo } from "./controls";
import { overlaidRows, type RowAt } from "../drawing/overlay";
import { fresh, heard, ink, intoSight, sized, useStops } from "./canvas";
import { Name } from "./name";
import { pointed } from "./pointed";
import { short } from "./slots";
import { isIn, isQuiet, type Label } from "../text/shown";

/** Of a line: the least, and the most that it grows to where the text is short. */
const HEIGHT = 22;
const TALLEST = 40;
/** Of a row of the matrix: where it is less, the lines have their own height. */
const NARROWEST = 14;
/** Marks at each edge for lines that end beyond it. */
const EDGES = 3;
const MANY = 3000;
/** Number of shades and widths of lines. All lines of one shade are a single stroke. */
const SHADES = 24;

/** Numbers of lines drawn and of lines that hold the chosen mass, if not all are drawn. */
export const linesCut = signal<[number, number] | null>(null);

/** From a query to a key, in one of the heads that are drawn. */
interface Line { r: number; c: number; weight: number; owner: number }

interface Strip { key: string; from: number; to: number; data: Float32Array }

export function Lines() {
  const scroller = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const seen = useSignal({ top: 0, height: 0, width: 0 });
  const strip = useSignal<Strip | null>(null);
  const left = useRef<HTMLDivElement>(null);
  const right = useRef<HTMLDivElement>(null);
  const rendered = useSignal(0);
  const placed = useRef(0);
  const edges = useSignal<{ up: Line[]; down: Line[] }>({ up: [], down: [] });
  /** Beside the matrix the lines begin at its rows. */
  const beside = useComputed(() => {
    const rows = rowsAt.value;
    return state.mode.value === "both" && rows && rows.cell >= NARROWEST && rows.cell <= TALLEST ? rows : null;
  });
  const lineHeight = useComputed(() => {
    if (beside.value) return beside.value.cell;
    const { rows, columns } = shown.value!;
    const most = Math.max(rows.length, columns.length, 1);
    return Math.max(HEIGHT, Math.min(TALLEST, Math.floor((seen.value.height - 10) / most)));
  });

  useStops(() => {
    const element = scroller.current!;
    const look = (): void => {
      const box = state.box.peek();
      // a zoomed map follows the reader's scrolling
      if (box && Math.abs(element.scrollTop - placed.current) > 2) {
        placed.current = element.scrollTop;
        state.box.value = { ...box, top: element.scrollTop / lineHeight.peek() };
      }
      seen.value = { top: element.scrollTop, height: element.clientHeight, width: element.clientWidth };
    };
    return [
      sized(look, element),
      heard(element, "scroll", look, { passive: true }),
      effect(fetchStrip),
      effect(draw),
      effect(inStep),
      effect(follow),
      effect(marks),
    ];
  });
  useLayoutEffect(() => { rendered.value++; });

  /** Mark hovered and pinned tokens and each key's weight on the existing elements, without rendering again. */
  function marks(): void {
    void rendered.value;
    const numbers = lookedNumbers.value;
    const most = mostOf(current.value);
    const words = shown.value!;
    const mark = (side: HTMLDivElement, hovered: number | null, pinned: number | null, labels: Label[], set: readonly number[]): void => {
      for (const token of side.children) {
        const at = Number((token as HTMLElement).dataset.at);
        token.classList.toggle("hovered", at === hovered);
        token.classList.toggle("pinned", at === pinned);
        const chosen = isIn(labels[at], set);
        token.classList.toggle("chosen", chosen);
        const selected = String(chosen || at === pinned);
        if (token.getAttribute("aria-selected") !== selected) token.setAttribute("aria-selected", selected);
        const bar = token.firstElementChild as HTMLElement | null;
        if (bar?.tagName === "I") bar.style.width = numbers ? `${(100 * Math.min(1, Math.abs(numbers[at]) / most)).toFixed(1)}%` : "0";
      }
    };
    mark(left.current!, state.hoverRow.value, row.value, words.rows, state.from.value);
    mark(right.current!, state.hoverColumn.value, column.value, words.columns, state.to.value);
  }

  /** Scroll so that the map's window and the lines begin at the same query. */
  function inStep(): void {
    const top = state.box.value?.top;
    const element = scroller.current!;
    if (top === undefined || Math.abs(element.scrollTop - top * lineHeight.value) < 2) return;
    element.scrollTop = top * lineHeight.value;
    placed.current = element.scrollTop;
  }

  /** Scroll the pinned query into view. */
  function follow(): void {
    if (row.value !== null) intoSight(scroller.current!, row.value * lineHeight.value, lineHeight.value);
  }

  /** The visible tokens of a side, with a margin: [from, to). */
  const range = (all: number): [number, number] => {
    const from = Math.max(0, Math.floor(seen.value.top / lineHeight.value) - 4);
    return [Math.min(from, all), Math.min(all, Math.ceil((seen.value.top + seen.value.height) / lineHeight.value) + 4)];
  };

  /** For a long text, compute only the visible rows. */
  function fetchStrip(): void {
    const [now, drawn] = [wanted.value!, current.value];
    if (!drawn || drawn.full || !seen.value.height) return;
    const [from, to] = range(now.shown.rows.length);
    const [key, old] = [wantedKey(now), strip.peek()];
    if (old?.key === key && old.from === from && old.to === to) return;
    rowsOf(now, from, to, "strip").then((data) => { strip.value = { key, from, to, data }; }, () => undefined);
  }

  function draw(): void {
    const element = canvas.current!;
    const [picture, now] = [current.value, wanted.value!];
    const { width, height, top } = seen.value;
    if (!picture || !width) return;
    const wide = element.clientWidth;
    const context = fresh(element, wide, height);
    const colour = ink(element, "--accent");
    void state.dark.value;
    const looked = lookedRow.value;
    const onlyKey = looked === null ? (state.hoverColumn.value ?? column.value) : null;
    const [from, to] = range(picture.rows);
    const selected = rowNumbers.value;
    const selectedRow = (r: number): Float32Array | null => {
      if (picture.full) return rowIn(picture, r);
      if (selected && selected.row === r) return selected.data;
      const drawn = strip.value;
      if (!drawn || drawn.key !== wantedKey(now) || r < drawn.from || r >= drawn.to) return null;
      return drawn.data.subarray((r - drawn.from) * picture.columns, (r - drawn.from + 1) * picture.columns);
    };
    const shift = beside.value?.top ?? 0;
    const y = (at: number): number => shift + (at + 0.5) * lineHeight.value - top;
    const most = mostOf(picture);
    context.lineCap = "round";
    const drawnHeads: { rowAt: RowAt; colour: string }[] = overlaidRows.value.length
      ? overlaidRows.value.map((rowAt, n) => ({ rowAt, colour: memberColour(n) })) : [{ rowAt: selectedRow, colour }];
    const queries = looked !== null ? [looked] : Array.from({ length: to - from }, (_, n) => from + n);
    const found: Line[] = [];
    drawnHeads.forEach(({ rowAt }, owner) => {
      for (const r of queries) {
        const numbers = rowAt(r);
        if (!numbers) continue;
        for (const c of strongestKeys(numbers, state.mass.value)) {
          if ((onlyKey !== null && c !== onlyKey) || (drawnHeads.length === 1 && r === looked && c === column.value)) continue;
          found.push({ r, c, weight: Math.abs(numbers[c]), owner });
        }
      }
    });
    const least = found.length > MANY ? Float32Array.from(found, ({ weight }) => weight).sort()[found.length - MANY] : 0;
    const strongest = found.filter(({ weight }) => Math.fround(weight) >= least).slice(0, MANY);
    /** Lines of each head and shade. */
    const shades: Line[][][] = drawnHeads.map(() => []);
    for (const line of strongest) (shades[line.owner][Math.round((SHADES - 1) * Math.sqrt(Math.min(1, line.weight / most)))] ??= []).push(line);
    const bend = (r: number, c: number): void => {
      context.moveTo(2, y(r));
      context.bezierCurveTo(wide * 0.4, y(r), wide * 0.6, y(c), wide - 2, y(c));
    };
    const stroke = (shade: number, strength: number): void => {
      const t = shade / (SHADES - 1);
      context.globalAlpha = strength * (0.12 + 0.88 * t);
      context.lineWidth = 0.6 + 3.4 * t * t;
      context.stroke();
    };
    shades.forEach((ofHead, owner) => {
      context.strokeStyle = drawnHeads[owner].colour;
      ofHead.forEach((lines, shade) => {
        context.beginPath();
        lines.forEach(({ r, c }) => bend(r, c));
        stroke(shade, looked !== null || onlyKey !== null ? 1 : 0.75);
      });
    });
    // over several heads the pin would hide which of them a line is
    const pinned = column.value;
    const weight = looked !== null && pinned !== null && drawnHeads.length === 1 ? selectedRow(looked)?.[pinned] : undefined;
    if (weight !== undefined && !maskOf(now)?.(now.shown.rows[looked!], now.shown.columns[pinned!], weight)) {
      context.beginPath();
      bend(looked!, pinned!);
      context.strokeStyle = ink(element, "--pin");
      stroke((SHADES - 1) * Math.sqrt(Math.min(1, Math.max(Math.abs(weight) / most, 0.04))), 1);
    }
    /** Those whose keys are out of sight. */
    const beyond = (side: "up" | "down"): Line[] =>
      found.filter(({ c }) => (side === "up" ? y(c) < 0 : y(c) > height)).sort((a, b) => b.weight - a.weight).slice(0, EDGES);
    const next = looked === null ? { up: [], down: [] } : { up: beyond("up"), down: beyond("down") };
    if (JSON.stringify(next) !== JSON.stringify(edges.peek())) edges.value = next;
    linesCut.value = strongest.length < found.length ? [strongest.length, found.length] : null;
  }

  const words = shown.value!;
  const height = lineHeight.value;
  const tokens = (side: "row" | "column", name: string, held: RefObject<HTMLDivElement>, labels: Label[], says: Word, [from, to] = range(labels.length)) => (
    <div class={`side ${name}`} role="listbox" aria-label={say(says)} aria-multiselectable="true" ref={held} {...pointed(side, labels)}>
      {labels.slice(from, to).map((label, n) => <Token key={from + n} label={label} at={from + n} side={side} height={height} />)}
    </div>
  );
  const edge = (side: "up" | "down") => edges.value[side].length > 0 && (
    <div class={`edge ${side}`}>
      {edges.value[side].map(({ c: at, weight }) => words.columns[at] && (
        <button key={at} data-column={at} data-weight={weight} title={say("edge", { token: words.columns[at].text, weight: number(weight) })} onClick={() => intoSight(scroller.current!, at * height)}>
          {side === "up" ? "↑" : "↓"} <bdi>{words.columns[at].text}</bdi> <small>{at}</small> <b>{short(weight)}</b>
        </button>
      ))}
    </div>
  );
  const tall = Math.max(words.rows.length, words.columns.length) * height + 8 + (beside.value?.top ?? 0);
  return (
    <div class="linesbox">
      <div class="lines" ref={scroller} tabIndex={tall > seen.value.height ? 0 : -1}>
        <div class="tall" style={{ height: `${tall}px`, "--shift": `${beside.value?.top ?? 0}px` }}>
          {tokens("row", "left", left, words.rows, "queries")}
          <canvas ref={canvas} style={{ height: `${seen.value.height}px` }} aria-hidden="true" />
          {tokens("column", "right", right, words.columns, "keys")}
        </div>
      </div>
      {edge("up")}{edge("down")}
    </div>
  );
}

const Token = memo(({ label, at, side, height }: { label: Label; at: number; side: "row" | "column"; height: number }) => (
  <div class={`token${isQuiet(label) ? " special" : ""}${label.segment === 1 ? " second" : ""}`}
    style={{ top: `${at * height}px`, height: `${height - 2}px`, lineHeight: `${height - 3}px` }} data-at={at}
    role="option" aria-selected="false" title={label.title}>
    {side === "column" && <i />}
    <Name label={label} />
  </div>
));
