// All heads: a thumbnail of each, with a bar of the chosen statistic below. Layers down, heads across.
import { useEffect, useRef } from "preact/hooks";
import { computed, effect, useSignal } from "@preact/signals";
import { palette, sequential } from "../colour";
import { count, number, say } from "../words";
import * as state from "../state";
import { at, doc, headLabel, headName, otherDoc, sameHeads } from "../store";
import { everyRow } from "../trace/measures";
import { statisticName, statisticUnit } from "../catalog";
import { coming, isUniform, known, table } from "../statistics";
import { fresh, ink } from "./canvas";
import { GridTable, gridTableOpen } from "./table";
import type { TraceInfo } from "../trace/trace";
import { Sign } from "./sign";

/** Space for the numbers of layers on the left, and of heads above. */
const GUTTER = 22;
const HEAD = 14;

/** Heads in drawing order: n = layer * heads + head. */
export const ranking = computed<number[]>(() => {
  const info = doc.value?.info;
  if (!info) return [];
  const places = Array.from({ length: info.layers.length * info.heads }, (_, n) => n);
  const numbers = table.value?.[state.statistic.value];
  if (state.order.value === "place" || !numbers) return places;
  const sign = state.order.value === "high" ? -1 : 1;
  const worth = (n: number): number => (Number.isFinite(numbers[n]) ? sign * numbers[n] : Infinity);
  return places.sort((a, b) => worth(a) - worth(b) || a - b);
});

export const range = computed<[number, number]>(() => {
  const numbers = table.value?.[state.statistic.value];
  if (!numbers) return [0, 1];
  let [low, high] = [Infinity, -Infinity];
  for (const value of numbers) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return low <= high ? [low, high] : [0, 1];
});

/** The head with the highest or lowest value of the chosen statistic. */
export function goToExtreme(highest: boolean): void {
  const info = doc.value?.info;
  const numbers = table.value?.[state.statistic.value];
  if (!info || !numbers) return;
  let best = -1;
  numbers.forEach((value, n) => {
    if (state.statistic.value === "similarity" && n === at.value.layer * info.heads + at.value.head) return;
    if (Number.isFinite(value) && (best < 0 || (highest ? value > numbers[best] : value < numbers[best]))) best = n;
  });
  if (best >= 0) choose(info, best);
}

function choose(info: TraceInfo, n: number): void {
  state.layer.value = Math.floor(n / info.heads);
  state.head.value = n % info.heads;
}

let sheet: HTMLCanvasElement | null = null;
let sheetKey: unknown[] = [];

/** All thumbnails, painted once, side by side. */
function atlas(info: TraceInfo, dark: boolean): HTMLCanvasElement | null {
  const { thumbs } = info;
  if (!thumbs) return null;
  if (sheet && sheetKey[0] === thumbs.data && sheetKey[1] === dark && sheetKey[2] === info) return sheet;
  const total = info.layers.length * info.heads;
  const colours = palette(sequential(dark));
  const [w, h] = [thumbs.columns, thumbs.rows];
  sheet = document.createElement("canvas");
  sheet.width = info.heads * w;
  sheet.height = info.layers.length * h;
  const image = new ImageData(sheet.width, sheet.height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let n = 0; n < total; n++) {
    const [x, y] = [(n % info.heads) * w, Math.floor(n / info.heads) * h];
    for (let cell = 0; cell < w * h; cell++) {
      pixels[(y + Math.floor(cell / w)) * sheet.width + x + (cell % w)] = colours[thumbs.data[n * w * h + cell]];
    }
  }
  sheet.getContext("2d")!.putImageData(image, 0, 0);
  sheetKey = [thumbs.data, dark, info];
  return sheet;
}

export function Grid() {
  const wrap = useRef<HTMLDivElement>(null);
  const base = useRef<HTMLCanvasElement>(null);
  const over = useRef<HTMLCanvasElement>(null);
  const width = useSignal(0);

  /** Position (left, top) and size of each head in the ranking. */
  const layout = (info: TraceInfo) => {
    const columns = info.heads;
    const rows = info.layers.length;
    const cell = Math.max(10, Math.min(rows <= 6 ? 64 : 40, Math.floor((width.value - GUTTER) / columns) - 2));
    const bar = 5;
    const [across, down] = [cell + 2, cell + bar + 3];
    const corner = (place: number): [number, number] => [GUTTER + (place % columns) * across, HEAD + Math.floor(place / columns) * down];
    return { cell, bar, columns, rows, across, down, corner, height: HEAD + rows * down };
  };

  useEffect(() => {
    const observer = new ResizeObserver(() => { width.value = wrap.current!.clientWidth; });
    observer.observe(wrap.current!);
    const stops = [() => observer.disconnect(), effect(draw), effect(mark)];
    return () => stops.forEach((stop) => stop());
  }, []);

  function prepare(canvas: HTMLCanvasElement, height: number): CanvasRenderingContext2D {
    canvas.style.height = `${height}px`;
    return fresh(canvas, width.value, height);
  }

  function draw(): void {
    const info = doc.value?.info;
    const dark = state.dark.value;
    const canvas = base.current;
    if (!info || !canvas || !width.value) return;
    const { cell, bar, columns, rows, corner, height } = layout(info);
    const context = prepare(canvas, height);
    const picture = atlas(info, dark);
    const numbers = table.value?.[state.statistic.value];
    const [low, high] = range.value;
    const sorted = state.order.value !== "place";
    context.font = `10px ${ink(canvas, "--text")}`;
    context.fillStyle = ink(canvas, "--quiet");
    context.textBaseline = "middle";
    if (!sorted) {
      context.textAlign = "right";
      for (let r = 0; r < rows; r++) context.fillText(String(info.layerNumbers[r]), GUTTER - 6, corner(r * columns)[1] + cell / 2, GUTTER - 6);
      context.textAlign = "center";
      for (let c = 0; sameHeads(info) && c < columns; c++) context.fillText(String(info.headNumbers[0][c]), corner(c)[0] + cell / 2, HEAD / 2, cell + 1);
    }
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    const silenced = new Set(info.ablated.map(([l, h]) => l * 10000 + h));
    ranking.value.forEach((n, place) => {
      const [x, y] = corner(place);
      const share = numbers && high > low ? (numbers[n] - low) / (high - low) : 0;
      const faded = numbers && share < state.least.value;
      context.globalAlpha = faded ? 0.18 : 1;
      context.fillStyle = ink(canvas, "--cell");
      context.fillRect(x, y, cell, cell);
      if (picture && info.thumbs) {
        const { columns: w, rows: h } = info.thumbs;
        context.imageSmoothingEnabled = w > cell;
        context.drawImage(picture, (n % info.heads) * w, Math.floor(n / info.heads) * h, w, h, x, y, cell, cell);
      }
      if (numbers && Number.isFinite(numbers[n])) {
        context.fillStyle = ink(canvas, "--track");
        context.fillRect(x, y + cell + 1, cell, bar - 2);
        context.fillStyle = ink(canvas, "--accent");
        context.fillRect(x, y + cell + 1, Math.max(1, cell * share), bar - 2);
      }
      const { l: layer, h: head } = headName(info, { layer: Math.floor(n / info.heads), head: n % info.heads });
      if (info.broken.has(n) || isUniform(info, n) || silenced.has(layer * 10000 + head)) {
        context.fillStyle = ink(canvas, "--panel");
        context.globalAlpha *= 0.75;
        context.fillRect(x, y, cell, cell);
        context.globalAlpha = faded ? 0.18 : 1;
        context.fillStyle = ink(canvas, "--ink");
        context.textAlign = "center";
        context.font = `${Math.min(15, cell)}px ${ink(canvas, "--text")}`;
        context.fillText(info.broken.has(n) ? "NaN" : silenced.has(layer * 10000 + head) ? "✕" : "◌", x + cell / 2, y + cell / 2, cell);
      }
      if (sorted && cell >= 18) {
        const label = `${layer}.${head}`;
        context.font = `${Math.min(8, (1.6 * cell) / label.length)}px ${ink(canvas, "--mono")}`;
        context.textAlign = "left";
        context.fillStyle = ink(canvas, "--panel");
        context.fillRect(x, y, Math.min(cell, context.measureText(label).width + 2), 9);
        context.fillStyle = ink(canvas, "--ink");
        context.fillText(label, x + 1, y + 5, cell - 2);
      }
      context.globalAlpha = 1;
    });
    if (picture && document.documentElement.dataset.painted === undefined) {
      document.documentElement.dataset.painted = String(performance.now());
    }
  }

  function mark(): void {
    const info = doc.value?.info;
    const canvas = over.current;
    void state.dark.value;
    if (!info || !canvas || !width.value) return;
    const { cell, corner, height } = layout(info);
    const context = prepare(canvas, height);
    const frame = (n: number, colour: string, line: number): void => {
      const [x, y] = corner(ranking.value.indexOf(n));
      context.strokeStyle = colour;
      context.lineWidth = line;
      context.strokeRect(x - 0.5, y - 0.5, cell + 1, cell + 1);
    };
    frame(at.value.layer * info.heads + at.value.head, ink(canvas, "--pin"), 2.5);
    const hover = state.hoverHead.value;
    if (hover) frame(hover[0] * info.heads + hover[1], ink(canvas, "--hover"), 1.5);
  }

  function headAt(event: PointerEvent | MouseEvent): number | null {
    const info = doc.value?.info;
    if (!info) return null;
    const place = wrap.current!.getBoundingClientRect();
    const { columns, rows, across, down } = layout(info);
    const c = Math.floor((event.clientX - place.left - GUTTER) / across);
    const r = Math.floor((event.clientY - place.top - HEAD) / down);
    if (c < 0 || c >= columns || r < 0 || r >= rows) return null;
    return ranking.value[r * columns + c] ?? null;
  }

  const info = doc.value?.info;
  if (!info) return null;
  const names = [...known.value, "similarity", ...(otherDoc.value ? ["change"] : [])];
  const uniform = Array.from({ length: info.layers.length * info.heads }, (_, n) => n).filter((n) => isUniform(info, n)).length;
  const thumbs = info.thumbs;
  const exact = thumbs && thumbs.rows === info.queries.tokens.length && thumbs.columns === info.keys.tokens.length;
  const [low, high] = range.value;
  const part = info.layerNumbers.some((number, n) => number !== n) || info.headNumbers.some((numbers) => numbers.some((number, n) => number !== n));
  const every = everyRow(info.queries.tokens.length);
  return (
    <section class="panel grid" aria-label={say("grid")}>
      <div class="row tools">
        <label title={say("colour_by")}><span>{say("colour_by")}</span> <select value={state.statistic.value} data-test="statistic"
          onChange={(event) => { state.statistic.value = event.currentTarget.value; }}>
          {names.map((name) => <option key={name} value={name}>{statisticName(name)}</option>)}
        </select></label>
        <select value={state.order.value} title={say("order")} data-test="order"
          onChange={(event) => { state.order.value = event.currentTarget.value as state.Order; }}>
          {state.ORDERS.map((name) => <option key={name} value={name}>{say(`order_${name}`)}</option>)}
        </select>
        <Sign says={say("extreme")} onClick={() => goToExtreme(true)}>⇧</Sign>
        <Sign says={say("grid_table")} class={gridTableOpen.value ? "on" : ""} aria-pressed={gridTableOpen.value} data-test="grid-table-open"
          onClick={() => { gridTableOpen.value = !gridTableOpen.value; }}>⊞</Sign>
      </div>
      <div class="scroller"><div
        class="heads" ref={wrap} role="img"
        aria-label={`${say("grid")}. ${say("layer_head", headName(info, at.value))}`}
        onPointerMove={(event) => {
          const n = headAt(event);
          const now = state.hoverHead.peek();
          const next: [number, number] | null = n === null ? null : [Math.floor(n / info.heads), n % info.heads];
          if (now?.[0] !== next?.[0] || now?.[1] !== next?.[1]) state.hoverHead.value = next;
        }}
        onPointerLeave={() => { state.hoverHead.value = null; }}
        onClick={(event) => { const n = headAt(event); if (n !== null) choose(info, n); }}
      >
        <canvas ref={base} /><canvas ref={over} class="over" />
      </div></div>
      <GridTable />
      <Reading names={names} />
      <div class="scale">
        <span>{number(low, 2)}</span>
        <input type="range" min="0" max="1" step="0.01" value={state.least.value} aria-label={say("at_least")}
          onInput={(event) => { state.least.value = Number(event.currentTarget.value); }} />
        <span>{number(high, 2)}</span>
      </div>
      {info.broken.size > 0 && <p class="note" data-test="broken">{say("broken_count", { n: count(info.broken.size) })}</p>}
      <p class="quiet small">{say("at_least")} {number(low + state.least.value * (high - low), 2)} · {uniform ? say("uniform_count", { n: count(uniform) }) : say("uniform_none")}</p>
      <p class="quiet small">{thumbs && (exact ? say("grid_exact") : say("grid_hint", { n: thumbs.rows, m: thumbs.columns }))}
        {info.measured > 1 ? ` · ${say("grid_measured", { n: info.measured })}` : ""}
        {every > 1 && (state.statistic.value === "similarity" || state.statistic.value === "change") ? ` · ${say("every_row", { n: every })}` : ""}</p>
      {info.ablated.length > 0 && <p class="quiet small">{say("silenced", { heads: info.ablated.map((cell) => cell.join(".")).join(", ") })}</p>}
      {info.unrecorded.length > 0 && <p class="small" data-test="unrecorded">{say("unrecorded", { names: info.unrecorded.join("; ") })}</p>}
      {part && <p class="quiet small" data-test="part">{say("grid_part", {
        layers: info.layerNumbers.join(", "),
        heads: [...new Set(info.headNumbers.map((numbers) => numbers.join(", ")))].join(" | "),
      })}</p>}
    </section>
  );
}

/** The hovered or selected head, and its value. */
function Reading({ names }: { names: string[] }) {
  const info = doc.value!.info;
  const looked = state.hoverHead.value ?? [at.value.layer, at.value.head];
  const value = table.value?.[state.statistic.value]?.[looked[0] * info.heads + looked[1]];
  const way = coming.value;
  return (
    <div class="reading" data-test="reading">
      <b>{headLabel(info, looked[0], looked[1])}</b>
      <span>{statisticName(names.includes(state.statistic.value) ? state.statistic.value : "entropy")}</span>
      <b>{value === undefined ? "–" : number(value)}</b>
      <span class="quiet">{way ? say("coming", { n: count(way[0]), all: count(way[1]) }) : statisticUnit(state.statistic.value)}</span>
    </div>
  );
}
