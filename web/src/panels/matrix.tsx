// The matrix of one head, queries down and keys across: drawing and pointer input.
import { useMemo, useRef } from "preact/hooks";
import { batch, effect, signal, useComputed, useSignal } from "@preact/signals";
import { colourOf, inkOn } from "../drawing/colour";
import { measured } from "../drawing/pen";
import { cellsOf, mostOf, wantedKey, type Picture, type Wanted, type Window } from "../drawing/pictures";
import { isIn, isQuiet, isUpright, placed, seams, type Label } from "../text/shown";
import { maskOf } from "../text/masking";
import * as state from "../state/state";
import { column, row, shown } from "../state/store";
import { letters } from "../words";
import { blit, fitted, fresh, heard, ink, sized, useStops } from "./canvas";
import { change, short } from "./slots";
import { around, geometry, LABELS, pool, SLANT, spaced, visible, zoomed, zooming, type Geometry, type Margins } from "./map";

interface Props {
  picture: Picture | null;
  wanted: Wanted | null;
  rows: Label[];
  columns: Label[];
  name: string;
  /** In a comparison: the row and column of A's picture at each of this picture's; -1 where A has none. */
  toA?: Places;
}

/** Numbers of a difference stand from here on. */
export const LEAST = 0.05;
/** Those of weights, in small cells. */
const WRITTEN = 0.1;

export interface Places {
  rows: Int32Array;
  columns: Int32Array;
}

/** What of the matrix is seen: top, bottom, left, right. */
export const partSeen = signal<Window | null>(null);
/** Cells of the matrix per pixel of the screen, if more than one. */
export const cellsInPixel = signal(1);
/** The least weight that the matrix writes into its cells; 0 where it writes all, or none. */
export const numbersFrom = signal(0);
/** Where the matrix has its rows, for the lines beside it: the first one's top, and from one to the next. */
export const rowsAt = signal<{ top: number; cell: number } | null>(null);
/** With more labels not all are drawn, and they get the room of usual ones. */
const MEASURED = 128;

/** Room for the labels: as much as the longest takes. */
function margins(rows: Label[], columns: Label[]): Margins {
  if (rows.length > MEASURED || columns.length > MEASURED) return LABELS;
  const wide = (label: Label): number => measured(`600 12px ${ink(document.documentElement, "--text")}`, placed(label)).width;
  return around(rows.map(wide), columns.map((label) => (isUpright(label.text) ? (letters(label.text).length * UPRIGHT) / 0.8 : wide(label))));
}

/** From letter to letter of a column's label in a script that is written from above. */
const UPRIGHT = 13;

/** Pixels of a cell that has room for a number. */
const NUMBERED = 20;

interface Tile { data: Float32Array; height: number; width: number; box: Window; key: string }

export function Matrix({ picture, wanted, rows, columns, name, toA }: Props) {
  const room = useMemo(() => margins(rows, columns), [rows, columns]);
  const wrap = useRef<HTMLDivElement>(null);
  const base = useRef<HTMLCanvasElement>(null);
  const over = useRef<HTMLCanvasElement>(null);
  const size = useSignal({ width: 0, height: 0 });
  const detail = useSignal<Tile | null>(null);
  const now = { picture, wanted, rows, columns, toA, room };
  /** What is drawn: effects can't follow properties. */
  const props = useSignal(now);
  const last = props.peek();
  if (last.picture !== picture || last.rows !== rows || last.columns !== columns) queueMicrotask(() => { props.value = now; });
  /** From this picture's places to A's, where the selection is, and back; null where the other has none. */
  const atA = (side: keyof Places, place: number): number | null => {
    const there = props.value.toA?.[side];
    return there ? (there[place] >= 0 ? there[place] : null) : place;
  };
  const here = (side: keyof Places, place: number | null): number | null => {
    const there = props.value.toA?.[side];
    const at = place === null ? -1 : there ? there.indexOf(place) : place;
    return at < 0 ? null : at;
  };
  const seen = useComputed(() => {
    const { picture: now } = props.value;
    return now && size.value.width ? geometry(size.value.width, size.value.height, now, state.box.value, props.value.room) : null;
  });

  useStops(() => {
    const element = wrap.current!;
    zooming.by = keyed;
    const measure = (): void => { size.value = { width: element.clientWidth, height: element.clientHeight }; };
    const wheel = (event: WheelEvent): void => {
      event.preventDefault();
      const place = element.getBoundingClientRect();
      zoom(Math.exp(event.deltaY * 0.0016), event.clientX - place.left, event.clientY - place.top);
    };
    return [
      sized(measure, element),
      heard(element, "wheel", wheel, { passive: false }),
      // if there is nothing to pan, touch scrolls the page
      effect(() => { element.style.touchAction = state.box.value ? "none" : "pan-x pan-y pinch-zoom"; }),
      effect(draw),
      effect(overlay),
      effect(refine),
    ];
  });

  /** By a key or a button: around the pinned cell, else the middle. */
  function keyed(factor: number): void {
    const g = wrap.current && seen.peek();
    if (!g) return;
    const r = here("rows", row.peek()) ?? g.row + g.height / g.cell / 2;
    const c = here("columns", column.peek()) ?? g.column + g.width / g.cell / 2;
    zoom(factor, g.x(c + 0.5), g.y(r + 0.5));
  }

  function zoom(factor: number, x: number, y: number): void {
    const g = seen.peek();
    const { picture: now } = props.value;
    if (g && now) state.box.value = zoomed(g, now, factor, x, y);
  }

  function draw(): void {
    const g = seen.value;
    const dark = state.dark.value;
    void state.scale.value;
    void state.reach.value;
    const canvas = base.current;
    const { picture: now, rows: down, columns: across } = props.value;
    // the picture of another text, until that of these words has come
    if (!g || !now || !canvas || now.rows !== down.length || now.columns !== across.length) return;
    const ratio = devicePixelRatio || 1;
    const context = fresh(canvas, size.value.width, size.value.height);
    wrap.current!.dataset.cells = [g.left, g.top, g.cell].join(" ");
    rowsAt.value = state.box.value ? null : { top: g.top, cell: g.cell };
    cellsInPixel.value = Math.max(1, 1 / (g.cell * ratio) ** 2);
    const [top, bottom, left, right] = visible(g, now);
    partSeen.value = [top, bottom, left, right];
    const { x, y } = g;
    context.save();
    context.beginPath();
    context.rect(g.left, g.top, g.width, g.height);
    context.clip();
    const fine = detail.value;
    if (now.full) {
      const height = Math.max(1, Math.round((bottom - top) * g.cell * ratio));
      const width = Math.max(1, Math.round((right - left) * g.cell * ratio));
      blit(context, pool(now, [top, bottom, left, right], height, width), x(left), y(top), (right - left) * g.cell, (bottom - top) * g.cell, mostOf(now), now.signed);
    } else {
      blit(context, now.overview, x(0), y(0), now.columns * g.cell, now.rows * g.cell, mostOf(now), now.signed);
      if (fine && fine.key === now.key) {
        const [t, b, l, r] = fine.box;
        blit(context, fine, x(l), y(t), (r - l) * g.cell, (b - t) * g.cell, mostOf(now), now.signed);
      }
    }
    const cells = now.full ?? null;
    const at = (r: number, c: number): number | null => {
      if (cells) return cells[r * now.columns + c];
      if (!fine || fine.key !== now.key) return null;
      const [t, b, l, rr] = fine.box;
      if (r < t || r >= b || c < l || c >= rr || fine.height !== b - t || fine.width !== rr - l) return null;
      return fine.data[(r - t) * fine.width + c - l];
    };
    const { wanted: want } = props.value;
    const masked = want && g.cell >= 6 && !want.minus ? maskOf(want) : null;
    // a hidden key has no weight: the pane's ground, and no number
    const hidden = (r: number, c: number) => masked?.(down[r], across[c], at(r, c) ?? 1);
    context.fillStyle = ink(canvas, "--line");
    if (masked) {
      for (let r = top; r < bottom; r++) for (let c = left; c < right; c++) if (hidden(r, c)) context.fillRect(x(c), y(r), g.cell, g.cell);
    }
    if (g.cell >= 12) {
      context.strokeStyle = ink(canvas, "--panel");
      context.globalAlpha = 0.55;
      context.lineWidth = 1;
      context.beginPath();
      for (let c = left; c <= right; c++) { context.moveTo(x(c), g.top); context.lineTo(x(c), g.top + g.height); }
      for (let r = top; r <= bottom; r++) { context.moveTo(g.left, y(r)); context.lineTo(g.left + g.width, y(r)); }
      context.stroke();
      context.globalAlpha = 1;
    }
    // between two texts
    context.fillStyle = ink(canvas, "--quiet");
    for (const c of seams(across)) context.fillRect(x(c) - 0.5, g.top, 1, g.height);
    for (const r of seams(down)) context.fillRect(g.left, y(r) - 0.5, g.width, 1);
    const least = now.signed ? LEAST : g.cell < 30 ? WRITTEN : 0;
    numbersFrom.value = g.cell >= NUMBERED ? least : 0;
    if (g.cell >= NUMBERED) {
      context.font = `12px ${ink(canvas, "--text")}`;
      context.textAlign = "center";
      context.textBaseline = "middle";
      for (let r = top; r < bottom; r++) {
        for (let c = left; c < right; c++) {
          const value = at(r, c);
          if (value === null || hidden(r, c) || Math.abs(value) < least) continue;
          context.fillStyle = inkOn(colourOf(value, mostOf(now), state.scale.value, dark, now.signed));
          context.fillText((now.signed ? change : short)(value), x(c) + g.cell / 2, y(r) + g.cell / 2, g.cell - 2);
        }
      }
    }
    context.restore();
    context.strokeStyle = ink(canvas, "--line");
    context.strokeRect(g.left - 0.5, g.top - 0.5, g.width + 1, g.height + 1);
    labels(context, canvas, g, down, across, top, bottom, left, right);
  }

  function labels(
    context: CanvasRenderingContext2D, canvas: HTMLCanvasElement, g: Geometry, down: Label[], across: Label[],
    top: number, bottom: number, left: number, right: number,
  ): void {
    context.textBaseline = "middle";
    const [pinnedRow, pinnedColumn] = [here("rows", row.value), here("columns", column.value)];
    const apart = Math.ceil(12 / g.cell);
    /** The labels that have room: the pinned one first, then special tokens, long words, and marks last. */
    const kept = (all: Label[], from: number, to: number, pinned: number | null): number[] => {
      const worth = all.slice(from, to).map((label, n) => (from + n === pinned ? 1e3 : label.special ? 99 : /[\p{L}\p{N}]/u.test(label.text) ? label.text.length : 0));
      return spaced(worth, apart).map((n) => from + n);
    };
    const pen = (label: Label, pinned: boolean): void => {
      context.font = `${label.differs || pinned ? "600 " : ""}12px ${ink(canvas, "--text")}`;
      context.fillStyle = ink(canvas, pinned ? "--pin" : isQuiet(label) ? "--quiet" : "--ink");
    };
    context.textAlign = "right";
    for (const r of kept(down, top, bottom, pinnedRow)) {
      const y = g.y(r + 0.5);
      if (y < g.top || y > g.top + g.height || !down[r]) continue;
      pen(down[r], r === pinnedRow);
      context.fillText(fitted(context, placed(down[r]), g.left - 10), g.left - 6, y);
    }
    context.textAlign = "left";
    for (const c of kept(across, left, right, pinnedColumn)) {
      const x = g.x(c + 0.5);
      if (x < g.left || x > g.left + g.width || !across[c]) continue;
      if (isUpright(across[c].text)) {
        pen(across[c], c === pinnedColumn);
        letters(across[c].text).reverse().forEach((letter, n) => context.fillText(letter, x - 6, g.top - 10 - n * UPRIGHT));
        continue;
      }
      context.save();
      context.translate(x + 2, g.top - 6);
      context.rotate(-SLANT);
      pen(across[c], c === pinnedColumn);
      context.fillText(fitted(context, placed(across[c]), (g.top - 10) / Math.sin(SLANT)), 0, 0);
      context.restore();
    }
  }

  function overlay(): void {
    const g = seen.value;
    const canvas = over.current;
    const { picture: now } = props.value;
    const [r, c] = [here("rows", state.hoverRow.value), here("columns", state.hoverColumn.value)];
    const [pinnedRow, pinnedColumn] = [here("rows", row.value), here("columns", column.value)];
    const words = shown.value!;
    void state.dark.value;
    if (!g || !now || !canvas) return;
    const context = fresh(canvas, size.value.width, size.value.height);
    context.beginPath();
    context.rect(g.left - 1, g.top - 1, g.width + 2, g.height + 2);
    context.clip();
    const cell = Math.max(g.cell, 2);
    const { x, y } = g;
    const frame = (left: number, top: number, width: number, height: number, colour: string, line: number): void => {
      context.strokeStyle = colour;
      context.lineWidth = line;
      context.strokeRect(left, top, width, height);
    };
    const [pin, hover] = [ink(canvas, "--pin"), ink(canvas, "--quiet")];
    const { rows: down, columns: across } = props.value;
    const chosen = (labels: Label[], place: number | null, set: readonly number[]): boolean => place !== null && isIn(labels[place], set);
    context.fillStyle = pin;
    // chosen sets: a bar at the side of their rows and above their columns
    down.forEach((_, n) => { if (chosen(words.rows, atA("rows", n), state.from.value)) context.fillRect(g.left - 1, y(n), 3, cell); });
    across.forEach((_, n) => { if (chosen(words.columns, atA("columns", n), state.to.value)) context.fillRect(x(n), g.top - 1, cell, 3); });
    if (pinnedRow !== null) frame(g.left, y(pinnedRow), g.width, cell, pin, 1.5);
    if (pinnedColumn !== null && pinnedRow !== null) frame(x(pinnedColumn), y(pinnedRow), cell, cell, pin, 3);
    else if (pinnedColumn !== null) frame(x(pinnedColumn), g.top, cell, g.height, pin, 1.5);
    if (r !== null) frame(g.left, y(r), g.width, cell, hover, 1);
    if (c !== null) frame(x(c), g.top, cell, g.height, hover, 1);
  }

  /** For a long text: the visible cells, at the screen's resolution. */
  function refine(): void {
    const g = seen.value;
    const { picture: now, wanted: want } = props.value;
    if (!g || !now || now.full || !want || !state.box.value || now.key !== wantedKey(want)) return;
    const box = visible(g, now);
    const [top, bottom, left, right] = box;
    const ratio = devicePixelRatio || 1;
    const height = Math.min(bottom - top, Math.round(g.height * ratio));
    const width = Math.min(right - left, Math.round(g.width * ratio));
    cellsOf(want, box, height, width, `detail ${name}`).then((data) => { detail.value = { data, height, width, box, key: now.key }; }, () => undefined);
  }

  const drag = useRef<{ x: number; y: number; row: number; column: number; moved: boolean } | null>(null);

  function cellAt(event: PointerEvent): [number, number] | null {
    const g = seen.peek();
    const { picture: now } = props.value;
    if (!g || !now) return null;
    const place = wrap.current!.getBoundingClientRect();
    const [x, y] = [event.clientX - place.left - g.left, event.clientY - place.top - g.top];
    const [r, c] = [Math.floor(g.row + y / g.cell), Math.floor(g.column + x / g.cell)];
    if (x > g.width || y > g.height || r >= now.rows || c >= now.columns) return null;
    if (x < -g.left || y < -g.top || (x < 0 && y < 0)) return null;
    return [y < 0 ? -1 : r, x < 0 ? -1 : c];
  }

  function moved(event: PointerEvent): void {
    const g = seen.peek();
    if (drag.current && g) {
      const { x, y, row: r, column: c } = drag.current;
      if (Math.abs(event.clientX - x) + Math.abs(event.clientY - y) > 4) drag.current.moved = true;
      if (drag.current.moved && state.box.peek()) {
        state.box.value = {
          span: state.box.peek()!.span,
          top: Math.max(0, r - (event.clientY - y) / g.cell),
          left: Math.max(0, c - (event.clientX - x) / g.cell),
        };
        return;
      }
    }
    const hit = cellAt(event);
    batch(() => {
      state.hoverRow.value = hit && hit[0] >= 0 ? atA("rows", hit[0]) : null;
      state.hoverColumn.value = hit && hit[1] >= 0 ? atA("columns", hit[1]) : null;
    });
  }

  function left(): void {
    batch(() => { state.hoverRow.value = null; state.hoverColumn.value = null; });
    drag.current = null;
  }

  function released(event: PointerEvent): void {
    const dragged = drag.current?.moved;
    drag.current = null;
    if (dragged) return;
    const hit = cellAt(event);
    if (!hit) return;
    const [r, c] = hit;
    const [atRow, atColumn] = [r < 0 ? null : atA("rows", r), c < 0 ? null : atA("columns", c)];
    if ((r >= 0 && atRow === null) || (c >= 0 && atColumn === null)) return;
    const words = shown.peek()!;
    const [i, j] = [atRow === null ? null : words.rows[atRow].tokens[0], atColumn === null ? null : words.columns[atColumn].tokens[0]];
    const same = (i === null || i === state.query.peek()) && (j === null || j === state.key.peek());
    batch(() => {
      if (i !== null) state.query.value = same ? null : i;
      if (j !== null) state.key.value = same ? null : j;
    });
  }

  return (
    <div
      class="matrix" ref={wrap} role="img" aria-label={name}
      onPointerMove={moved}
      onPointerLeave={left}
      onPointerCancel={left}
      onPointerDown={(event) => {
        const g = seen.peek();
        if (g) drag.current = { x: event.clientX, y: event.clientY, row: g.row, column: g.column, moved: false };
      }}
      onPointerUp={released}
      onDblClick={() => { state.box.value = null; }}
    >
      <canvas ref={base} />
      <canvas ref={over} class="over" />
    </div>
  );
}
