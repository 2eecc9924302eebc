// All heads: a tile for each, in the colour of its number for what the grid is asked, with its picture or its value.
import { useEffect, useRef } from "preact/hooks";
import { effect, useSignal } from "@preact/signals";
import { css, inkOn, palette, sequential } from "../colour";
import { changeName, targetName } from "../ask";
import { chosenSets, clearSets, pinnedCell } from "../asking";
import { count, number, say } from "../words";
import * as state from "../state";
import { drawn, faint, goToNext, isSigned, isTurned, range, ranked, shade, tone, toneScale } from "../ranking";
import { members, memberColour, overlaid, pick } from "../several";
import { slotB } from "../comparing";
import { at, doc, headLabel, headName, otherDoc, sameHeads, shown } from "../store";
import { effect as effects, effectAbout } from "../runs";
import { everyRow } from "../trace/measures";
import { statisticName, statisticUnit } from "../catalog";
import { coming, isUniform, known, table } from "../statistics";
import { wanted } from "../pictures";
import { sifted } from "../sifted";
import { fresh, ink } from "./canvas";
import { GridTable, gridTableOpen } from "./table";
import { wordAt } from "../shown";
import { HeadList } from "./headlist";
import { corner, GUTTER, HEAD, short, slots, type Slots } from "./slots";
import type { Axis, TraceInfo } from "../trace/trace";
import { Sign } from "./sign";

/** A panel of this height has room for ten ranks. */
const TALL = 680;

let sheet: HTMLCanvasElement | null = null;
let sheetKey: unknown[] = [];

/** All thumbnails, painted once, side by side. */
function atlas(info: TraceInfo, thumbs: TraceInfo["thumbs"], dark: boolean): HTMLCanvasElement | null {
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
  const scroller = useRef<HTMLDivElement>(null);
  const wrap = useRef<HTMLDivElement>(null);
  const base = useRef<HTMLCanvasElement>(null);
  const over = useRef<HTMLCanvasElement>(null);
  const width = useSignal(0);
  const height = useSignal(0);
  const panel = useSignal(0);

  const layout = (info: TraceInfo): Slots => {
    const [columns, rows] = isTurned(info) ? [info.layers.length, info.heads] : [info.heads, info.layers.length];
    return slots(columns, rows, width.value, height.value, state.order.value !== "place", state.face.value === "pictures");
  };

  useEffect(() => {
    const observer = new ResizeObserver(() => {
      width.value = wrap.current!.clientWidth;
      // where the page itself scrolls, the grid is as high as it needs
      panel.value = scroller.current!.parentElement!.clientHeight;
      height.value = getComputedStyle(scroller.current!).overflowY === "visible" ? 0 : scroller.current!.clientHeight;
    });
    observer.observe(wrap.current!);
    observer.observe(scroller.current!);
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
    const now = layout(info);
    const { columns, rows, across, side, frame, label, number: below, beside } = now;
    const tile = side + 2 * frame;
    const context = prepare(canvas, now.total);
    const pictures = state.face.value === "pictures";
    const { thumbs } = sifted.value ?? info;
    const picture = pictures ? atlas(info, thumbs, dark) : null;
    const numbers = table.value?.[state.statistic.value];
    const [, high] = range.value;
    const sorted = state.order.value !== "place";
    const [text, mono] = [ink(canvas, "--text"), ink(canvas, "--mono")];
    context.font = `10px ${text}`;
    context.fillStyle = ink(canvas, "--quiet");
    context.textBaseline = "middle";
    if (!sorted) {
      const heads = sameHeads(info) ? info.headNumbers[0] : null;
      const [down, along] = isTurned(info) ? [heads, info.layerNumbers] : [info.layerNumbers, heads];
      context.textAlign = "right";
      for (let r = 0; down && r < rows; r++) context.fillText(String(down[r]), GUTTER - 6, corner(now, r * columns)[1] + now.height / 2, GUTTER - 6);
      context.textAlign = "center";
      for (let c = 0; along && c < columns; c++) context.fillText(String(along[c]), corner(now, c)[0] + now.width / 2, HEAD / 2, across - 1);
    }
    const silenced = new Set(info.ablated.map(([l, h]) => l * 10000 + h));
    drawn.value.forEach((n, place) => {
      const [x, top] = corner(now, place);
      const y = top + label;
      const value = numbers?.[n] ?? NaN;
      const faded = Number.isFinite(value) && (isSigned.value ? Math.abs(value) : value) < faint();
      const colour = Number.isFinite(value) ? shade(value, dark) : null;
      const { l: layer, h: head } = headName(info, { layer: Math.floor(n / info.heads), head: n % info.heads });
      const left = x + (now.width - tile - beside) / 2;
      context.globalAlpha = faded ? 0.18 : 1;
      context.textAlign = "center";
      // the tile has the number's colour, and shows it as a frame around the picture
      context.fillStyle = colour ? css(colour) : ink(canvas, "--track");
      if (pictures) context.fillRect(left, y, tile + beside, tile + below);
      else context.fillRect(x, y, now.width, now.height);
      if (pictures) {
        context.fillStyle = ink(canvas, "--cell");
        context.fillRect(left + frame, y + frame, side, side);
        if (picture && thumbs) {
          const { columns: w, rows: h } = thumbs;
          context.imageSmoothingEnabled = w > side;
          context.imageSmoothingQuality = "high";
          context.drawImage(picture, (n % info.heads) * w, Math.floor(n / info.heads) * h, w, h, left + frame, y + frame, side, side);
        }
      }
      if ((below || beside || !pictures) && numbers) {
        const [middle, centre, size] = !pictures
          ? [y + now.height / 2, x + now.width / 2, Math.min(13, now.height - 4, across / 2.6)]
          : beside ? [y + tile / 2, left + tile + beside / 2 - frame / 2, 10.5] : [y + tile + below / 2 - 1, left + tile / 2, 10.5];
        context.font = `${n === at.peek().layer * info.heads + at.peek().head ? "600 " : ""}${size}px ${text}`;
        context.fillStyle = colour ? inkOn(colour) : ink(canvas, "--quiet");
        context.fillText(short(value, isSigned.value ? high : undefined), centre, middle, beside ? beside - 1 : across - 3);
      }
      const mark = info.awaited.has(n) ? "…" : info.broken.has(n) ? "NaN" : silenced.has(layer * 10000 + head) ? "✕" : isUniform(info, n) ? "◌" : "";
      if (mark && pictures) {
        context.fillStyle = ink(canvas, "--panel");
        context.globalAlpha *= 0.75;
        context.fillRect(left + frame, y + frame, side, side);
        context.globalAlpha = faded ? 0.18 : 1;
        context.fillStyle = ink(canvas, "--ink");
        context.font = `${Math.min(15, side)}px ${text}`;
        context.fillText(mark, left + tile / 2, y + tile / 2, side);
      } else if (mark) {
        context.font = `9px ${text}`;
        context.textAlign = "left";
        context.fillText(mark, x + 2, y + 6, now.width - 4);
      }
      if (label) {
        context.font = `9px ${mono}`;
        context.textAlign = "left";
        context.fillStyle = ink(canvas, "--ink");
        context.fillText(`${layer}.${head}`, x, top + label / 2, now.width);
      }
      context.globalAlpha = 1;
    });
    if ((picture || !pictures) && document.documentElement.dataset.painted === undefined) {
      document.documentElement.dataset.painted = String(performance.now());
    }
  }

  function mark(): void {
    const info = doc.value?.info;
    const canvas = over.current;
    void state.dark.value;
    if (!info || !canvas || !width.value) return;
    const now = layout(info);
    const context = prepare(canvas, now.total);
    const frame = (n: number, colour: string, line: number): void => {
      const [x, y] = corner(now, drawn.value.indexOf(n));
      const wide = now.side ? now.side + 2 * now.frame + now.beside : now.width;
      const high = now.side ? now.side + 2 * now.frame + now.number : now.height;
      context.strokeStyle = colour;
      context.lineWidth = line;
      context.strokeRect(x + (now.width - wide) / 2, y + now.label, wide, high);
    };
    const b = state.pane.value === "compare" && slotB.value?.doc === doc.value ? slotB.value : null;
    members.value.forEach(([layer, head], n) => frame(layer * info.heads + head, overlaid.value.length ? memberColour(n) : ink(canvas, "--hover"), 2.5));
    if (b) frame(b.layer * info.heads + b.head, ink(canvas, "--ink"), 2.5);
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
    return drawn.value[r * columns + c] ?? null;
  }

  const info = doc.value?.info;
  if (!info) return null;
  const names = [...known.value, "weight", "mass", "similarity", ...(effects.value || isSigned.value ? ["effect"] : []), ...(otherDoc.value ? ["change"] : [])];
  const uniform = Array.from({ length: info.layers.length * info.heads }, (_, n) => n).filter((n) => isUniform(info, n)).length;
  const { thumbs } = sifted.value ?? info;
  const exact = thumbs && thumbs.rows === shown.value?.rows.length && thumbs.columns === shown.value.columns.length;
  const measured = sifted.value?.every ?? info.measured;
  const [low, high] = range.value;
  const part = info.layerNumbers.some((number, n) => number !== n) || info.headNumbers.some((numbers) => numbers.some((number, n) => number !== n));
  const every = everyRow(info.queries.tokens.length);
  return (
    <section class="panel grid" aria-label={say("grid")}>
      <div class="row tools">
        <label title={say("colour_by")}><span>{say("ask")}</span> <select value={state.statistic.value} data-test="statistic"
          onChange={(event) => { state.statistic.value = event.currentTarget.value; }}>
          {names.map((name) => <option key={name} value={name}>{statisticName(name)}</option>)}
        </select></label>
        <select value={state.order.value} title={say("order")} data-test="order"
          onChange={(event) => { state.order.value = event.currentTarget.value as state.Order; }}>
          {state.ORDERS.map((name) => <option key={name} value={name}>{say(`order_${name}`)}</option>)}
        </select>
        <Sign says={say("ask_next")} data-test="next-head" onClick={() => goToNext(1)}>e</Sign>
        <span class="switch" role="group">
          {state.FACES.map((name) => (
            <button key={name} class={state.face.value === name ? "on" : ""} aria-pressed={state.face.value === name} data-test={`face-${name}`}
              onClick={() => { state.face.value = name; }}>{say(`face_${name}`)}</button>
          ))}
        </span>
        <Sign says={say("grid_table")} class={gridTableOpen.value ? "on" : ""} aria-pressed={gridTableOpen.value} data-test="grid-table-open"
          onClick={() => { gridTableOpen.value = !gridTableOpen.value; }}>⊞</Sign>
      </div>
      <Asked />
      <div class="scroller" ref={scroller}><div
        class="heads" ref={wrap} role="img"
        aria-label={`${say("grid")}. ${say("layer_head", headName(info, at.value))}`}
        onPointerMove={(event) => {
          const n = headAt(event);
          const now = state.hoverHead.peek();
          const next: [number, number] | null = n === null ? null : [Math.floor(n / info.heads), n % info.heads];
          if (now?.[0] !== next?.[0] || now?.[1] !== next?.[1]) state.hoverHead.value = next;
        }}
        onPointerLeave={() => { state.hoverHead.value = null; }}
        onClick={(event) => { const n = headAt(event); if (n !== null) pick(event, n); }}
      >
        <canvas ref={base} /><canvas ref={over} class="over" />
      </div></div>
      <GridTable />
      <Reading names={names} />
      <div class="scale">
        <span>{number(low, 2)}</span>
        <span class="between">
          <i class="ramp" style={{ background: `linear-gradient(to right, ${Array.from({ length: 13 }, (_, n) => css(shade(low + ((high - low) * n) / 12, state.dark.value))).join(",")})` }} />
          <input type="range" min="0" max="1" step="0.01" value={state.least.value} aria-label={say("at_least")}
            onInput={(event) => { state.least.value = Number(event.currentTarget.value); }} />
        </span>
        <span>{number(high, 2)}</span>
        <span class="quiet">{say(`scale_${toneScale.value}`)}</span>
      </div>
      <Ranks info={info} tall={panel.value > TALL} />
      {info.broken.size > 0 && <p class="note" data-test="broken">{say("broken_count", { n: count(info.broken.size) })}</p>}
      <p class="quiet small">{say("at_least")} {number(faint(), 2)} · {uniform ? say("uniform_count", { n: count(uniform) }) : say("uniform_none")}</p>
      <p class="quiet small">{state.face.value === "values" ? say("grid_values")
        : thumbs && say(`grid_${exact ? "exact" : "hint"}${isTurned(info) ? "_turned" : ""}`, { n: thumbs.rows, m: thumbs.columns })}
        {sifted.value ? ` · ${say("grid_sifted")}${wanted.value?.normed ? ` · ${say("grid_normed")}` : ""}` : ""}
        {measured > 1 ? ` · ${say("grid_measured", { n: measured })}` : ""}
        {info.awaited.size > 0 && <span data-test="awaited"> · {say("coming", { n: count(info.layers.length * info.heads - info.awaited.size), all: count(info.layers.length * info.heads) })}</span>}
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

/** The tokens that a question is about, or how to choose them. */
function Asked() {
  const words = shown.value;
  const info = doc.value!.info;
  const name = state.statistic.value;
  const about = effectAbout.value;
  if (name === "effect") {
    return !about ? <p class="quiet small asked" data-test="asked">{say("ask_effect")}</p> : <p class="small asked" data-test="asked"><b class="chip">{changeName(about)}</b> <span class="quiet">{about.target && targetName(about.target)}</span></p>;
  }
  if (!words || (name !== "weight" && name !== "mass")) return null;
  if (name === "weight" && !pinnedCell.value) return <p class="quiet small asked" data-test="asked">{say("ask_pin")}</p>;
  const sets = chosenSets.value!;
  if (name === "mass" && !sets.to.length) return <p class="quiet small asked" data-test="asked">{say("ask_choose")}</p>;
  const [from, to] = name === "mass" ? [sets.from, sets.to] : [pinnedCell.value!.queries, pinnedCell.value!.keys];
  /** The words of a set: the pieces of one word count once. */
  const set = (places: ArrayLike<number>, axis: Axis): string => {
    const first = Array.from(places).filter((place, n) => n === 0 || axis.words[place] === null || axis.words[place] !== axis.words[places[n - 1]]);
    const all = first.map((place) => wordAt(axis, place));
    const spelled = [...new Set(all)];
    return spelled.length === 1 ? `${spelled[0]}${all.length > 1 ? ` ×${all.length}` : ""}` : all.length > 3 ? say("ask_times", { n: count(places.length) }) : all.join(" + ");
  };
  return (
    <p class="row asked" data-test="asked">
      <span class="quiet">{say("ask_from")}</span> <bdi class="chip">{from.length ? set(from, info.queries) : say("ask_every")}</bdi>
      <span class="quiet">{say("ask_to")}</span> <bdi class="chip">{set(to, info.keys)}</bdi>
      {(state.from.value.length > 0 || state.to.value.length > 0) && <Sign says={say("ask_clear")} class="plain" data-test="ask-clear" onClick={clearSets}>×</Sign>}
    </p>
  );
}

/** The first heads of the ranking, with their numbers. */
function Ranks({ info, tall }: { info: TraceInfo; tall: boolean }) {
  const name = state.statistic.value;
  const numbers = table.value?.[name];
  const most = state.face.value === "values" && tall ? 10 : 3;
  const order = numbers ? ranked.value.slice(0, most) : [];
  return (
    <section class="ranks" aria-label={say(state.order.value === "low" ? "ranked_low" : "ranked")}>
      <h3 class="row spread"><span>{say(state.order.value === "low" ? "ranked_low" : "ranked")}</span> <small class="quiet">{say("of_heads", { n: count(info.layers.length * info.heads) })}</small></h3>
      <HeadList info={info} order={order} lines={most} numbers={numbers} test="ranks" share={tone} />
    </section>
  );
}

/** The head that is pointed at, or chosen, and its number. */
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
