// All heads: a tile for each, in the colour of its number for what the grid is asked, with its picture or its value.
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { effect, useSignal } from "@preact/signals";
import { css, inkOn, palette } from "../drawing/colour";
import { changeName, NOTHING, numberName, targetName } from "../model/ask";
import { chosenSets, clearSets, pinnedCell } from "../heads/asking";
import { count, number, say, tell } from "../words";
import * as state from "../state/state";
import { askedNumbers, drawn, faint, goToNext, isSigned, isWeight, range, ranked, shade, tone, toneScale, walked } from "../heads/ranking";
import { guessAt, guesses, type Guess } from "../heads/guesses";
import { members, memberColour, overlaid, pick } from "../heads/several";
import { asked, isDuel, joint, otherDoc, placeOf, slotB } from "../state/comparing";
import { at, doc, headLabel, headName, sameHeads, shown } from "../state/store";
import { beside, effects, effectAbout, group } from "../model/runs";
import { everyRow, pooled } from "../trace/parts";
import { statisticName, statisticUnit } from "../heads/catalog";
import { changed, coming, isUniform, known, STILL } from "../heads/statistics";
import { wanted } from "../drawing/pictures";
import { sifted } from "../heads/sifted";
import { Adding } from "./adding";
import { fresh, ink, intoSight, sized, useStops } from "./canvas";
import { GridTable, gridTableOpen } from "./table";
import { spelled, wordAt, wordOf } from "../text/shown";
import { HeadList } from "./headlist";
import { Ramp } from "./legend";
import { change, corner, end, GUTTER, HEAD, short, slots, type Slots } from "./slots";
import type { Axis, TraceInfo } from "../trace/trace";
import { Menu, Range, Sign, Switch } from "./controls";
import { toolsOpen } from "./tools";

/** Heads that are named below the grid. */
const RANKS = 6;
/** Rounding of the frame around a head. */
const ROUND = 6;

/** Heads beside each other on a phone, each under its own name: a row of more would be too small for a finger. */
const PHONE = 6;
/** Rows of those that a phone shows; with more heads it has a row for each layer, and all of them on one screen. */
const NAMED_ROWS = 12;
/** The least height of such a row, and what stands around the grid. */
const FINGER = 24;
const AROUND = 290;
/** At the bottom of a phone's page, over what it has. */
const BAR = 60;
/** Layers up to which there is room for a list below the grid. */
const LISTED = 16;
/** Numbers of weights stand from here on where they stand close. */
const WRITTEN = 0.1;
/** The width of a slot from which on a guess stands beside its number. */
const WORDED = 56;
/** The width from which on the page is no phone's, as in the style sheet. */
const phone = matchMedia("(max-width: 680px)");

const isNamed = ({ layers, heads }: TraceInfo): boolean => phone.matches && layers.length * heads <= PHONE * NAMED_ROWS;

let sheet: HTMLCanvasElement | null = null;
let sheetKey: unknown[] = [];

interface Sheet { canvas: HTMLCanvasElement; w: number; h: number }

/** All thumbnails, painted once, side by side; a pixel of the screen has the byte furthest from `zero` that falls on it, so that a diagonal survives. */
function atlas(info: TraceInfo, thumbs: TraceInfo["thumbs"], dark: boolean, side: number, zero: number): Sheet | null {
  if (!thumbs?.rows) return null;
  const most = Math.ceil(side * devicePixelRatio);
  const [w, h] = [Math.min(most, thumbs.columns), Math.min(most, thumbs.rows)];
  const key = [thumbs.data, dark, info, w, h, zero];
  if (sheet && key.every((part, n) => part === sheetKey[n])) return { canvas: sheet, w, h };
  const total = info.layers.length * info.heads;
  const colours = palette(zero > 0, dark);
  const cells = thumbs.rows * thumbs.columns;
  const bytes = new Float32Array(cells);
  sheet = document.createElement("canvas");
  sheet.width = info.heads * w;
  sheet.height = info.layers.length * h;
  const image = new ImageData(sheet.width, sheet.height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let n = 0; n < total; n++) {
    const [x, y] = [(n % info.heads) * w, Math.floor(n / info.heads) * h];
    for (let cell = 0; cell < cells; cell++) bytes[cell] = thumbs.data[n * cells + cell] - zero;
    const { data } = pooled([0, thumbs.rows, 0, thumbs.columns], h, w, (row) => bytes.subarray(row * thumbs.columns));
    for (let r = 0, cell = 0; r < h; r++) for (let c = 0; c < w; c++, cell++) pixels[(y + r) * sheet.width + x + c] = colours[zero ? 255 + 2 * data[cell] : data[cell]];
  }
  sheet.getContext("2d")!.putImageData(image, 0, 0);
  sheetKey = key;
  return { canvas: sheet, w, h };
}

export function Grid() {
  const scroller = useRef<HTMLDivElement>(null);
  const wrap = useRef<HTMLDivElement>(null);
  const base = useRef<HTMLCanvasElement>(null);
  const over = useRef<HTMLCanvasElement>(null);
  const width = useSignal(0);
  const height = useSignal(0);
  const walks = useRef(walked.peek());

  const layout = (info: TraceInfo): Slots => {
    const [layers, { heads }] = [info.layers.length, info];
    const columns = isNamed(info) ? Math.min(PHONE, heads) : heads;
    const rows = Math.ceil((layers * heads) / columns);
    const high = phone.matches && columns === heads ? Math.max(rows * FINGER, document.documentElement.clientHeight - AROUND) : height.value;
    return slots(columns, rows, width.value, high, state.order.value !== "place", state.face.value === "pictures", isSigned.value);
  };

  useStops(() => {
    const measure = (): void => {
      width.value = wrap.current!.clientWidth;
      // where the page itself scrolls, the grid is as high as it needs
      height.value = getComputedStyle(scroller.current!).overflowY === "visible" ? 0 : scroller.current!.clientHeight;
    };
    return [sized(measure, wrap.current, scroller.current), effect(draw), effect(mark), effect(follow)];
  });

  function prepare(canvas: HTMLCanvasElement, height: number): CanvasRenderingContext2D {
    canvas.style.height = `${height}px`;
    return fresh(canvas, width.value, height);
  }

  function draw(): void {
    const { info } = doc.value!;
    const dark = state.dark.value;
    const canvas = base.current!;
    if (!width.value) return;
    const now = layout(info);
    const { form, columns, rows, across, side, label, meter, number: below } = now;
    const aside = form === "beside";
    const context = prepare(canvas, now.total);
    const picture = side && !isFlat() ? atlas(info, thumbsOf(info), dark, side, isDuel.value ? STILL : 0) : null;
    const numbers = askedNumbers.value;
    const [, high] = range.value;
    const sorted = state.order.value !== "place";
    const [text, plain, quiet, pin] = ["--text", "--ink", "--quiet", "--pin"].map((name) => ink(canvas, name));
    context.textBaseline = "middle";
    const write = (said: string, x: number, y: number, most: number, colour: string, align: CanvasTextAlign = "center", font = "12px"): void => {
      context.font = `${font} ${text}`;
      context.fillStyle = colour;
      context.textAlign = align;
      context.fillText(said, x, y, most);
    };
    const named = isNamed(info) && side > 0 && !sorted;
    if (!sorted && !named) {
      const heads = sameHeads(info) ? info.headNumbers[0] : null;
      const [everyRow, everyColumn] = [now.down < 13 ? 5 : 1, across < 3.6 ? 20 : across < 18 ? 5 : 1];
      for (let r = 0; r < rows; r += everyRow) write(String(info.layerNumbers[r]), GUTTER - 6, corner(now, r * columns)[1] + (side || now.height) / 2, GUTTER - 6, quiet, "right");
      for (let c = 0; heads && c < columns; c += everyColumn) write(String(heads[c]), corner(now, c)[0] + (aside ? side : now.width) / 2, HEAD / 2, everyColumn * across - 1, quiet);
    }
    const silenced = new Set(info.ablated.map((cell) => cell.join(".")));
    const chosen = at.value.n;
    const bold = new Set(numbers ? ranked.value.slice(0, Math.ceil(drawn.value.length / 8)).filter((n) => short(numbers[n]) !== "0") : []);
    const least = isClose(now) ? WRITTEN : 0;
    /** Where the second text begins in a picture, as a share of its side. */
    const second = [info.queries, info.keys].map(({ segments }) => segments.indexOf(1) / segments.length);
    drawn.value.forEach((n, place) => {
      const [x, top] = corner(now, place);
      const y = top + label;
      const value = numbers?.[n] ?? NaN;
      const faded = Number.isFinite(value) && (isSigned.value ? Math.abs(value) : value) < faint();
      const colour = Number.isFinite(value) ? shade(value, dark) : null;
      const name = headLabel(info, n);
      const left = aside ? x : x + Math.floor((now.width - side) / 2);
      context.globalAlpha = faded ? 0.18 : 1;
      if (!side || isFlat()) {
        context.fillStyle = colour ? css(colour) : ink(canvas, "--line");
        context.fillRect(side ? left : x, y, side || now.width, side || now.height);
      } else if (picture) {
        const { canvas: from, w, h } = picture;
        context.imageSmoothingEnabled = false;
        context.drawImage(from, (n % info.heads) * w, Math.floor(n / info.heads) * h, w, h, left, y, side, side);
        context.fillStyle = ink(canvas, "--edge");
        if (second[0] > 0) context.fillRect(left, y + Math.round(side * second[0]), side, 1);
        if (second[1] > 0) context.fillRect(left + Math.round(side * second[1]), y, 1, side);
      }
      if (side) {
        context.strokeStyle = ink(canvas, "--line");
        context.lineWidth = 1;
        context.strokeRect(left + 0.5, y + 0.5, side - 1, side - 1);
      }
      if (meter && !isSigned.value && Number.isFinite(value)) {
        context.fillStyle = n === chosen ? pin : ink(canvas, "--accent");
        context.fillRect(left, y + side + (aside ? 1 : 0), Math.round(side * Math.min(1, tone(value))), aside ? meter - 1 : meter);
      }
      const guess = guessAt(n);
      const isBold = guess ? guess.turns : bold.has(n);
      const said = guess ? guessName(guess, across > WORDED) : now.named ? name : `${named ? `${name} ` : ""}${(isSigned.value && asked.value !== "change" ? change : short)(value, isFlat() ? high : undefined)}`;
      if (now.written && (below || form !== "under") && numbers && (now.named || n === chosen || !least || value >= least)) {
        const [shade, font] = [side ? (n === chosen ? pin : isBold ? plain : quiet) : colour ? inkOn(colour) : quiet, `${n === chosen || isBold ? "600 " : ""}12px`];
        if (aside) write(said, left + side + 2, y + side / 2, across - side - 3, shade, "left", font);
        else write(said, x + now.width / 2, side ? y + side + meter + below / 2 + 1 : y + now.height / 2 + 0.5, across - 2, shade, "center", font);
      }
      const mark = info.awaited.has(n) ? "…" : info.broken.has(n) ? "NaN" : silenced.has(name) ? "✕" : isUniform(info, n) ? "◌" : "";
      if (mark && side) {
        context.fillStyle = ink(canvas, "--panel");
        context.globalAlpha *= 0.75;
        context.fillRect(left, y, side, side);
        context.globalAlpha = faded ? 0.18 : 1;
        write(mark, left + side / 2, y + side / 2, side, plain, "center", `${side < 20 ? 12 : 14}px`);
      } else if (mark && now.height >= 24) write(mark, x + 2, y + 7, now.width - 4, colour ? inkOn(colour) : quiet, "left");
      if (label) write(name, aside ? left : x + now.width / 2, top + label / 2, now.width, plain, aside ? "left" : "center");
      context.globalAlpha = 1;
    });
    if ((picture || !side || isFlat()) && document.documentElement.dataset.painted === undefined) {
      document.documentElement.dataset.painted = String(performance.now());
    }
  }

  function mark(): void {
    const { info } = doc.value!;
    const canvas = over.current!;
    void state.dark.value;
    if (!width.value) return;
    const now = layout(info);
    const context = prepare(canvas, now.total);
    const frame = (n: number, colour: string, line: number): void => {
      const [x, y] = corner(now, drawn.value.indexOf(n));
      context.strokeStyle = colour;
      context.lineWidth = line;
      context.beginPath();
      const high = now.form === "value" ? now.height : now.side + now.meter + now.number;
      const out = now.form === "under" ? 2 : 1;
      context.roundRect(x - 1, y + now.label - out, now.width + 2, high + 2 * out, Math.min(ROUND, high / 4));
      context.stroke();
    };
    const b = state.pane.value === "compare" && slotB.value?.doc === doc.value ? slotB.value : null;
    members.value.forEach((member, n) => frame(member, overlaid.value.length ? memberColour(n) : ink(canvas, "--quiet"), 2));
    if (b) frame(b.n, ink(canvas, "--ink"), 2);
    const run = beside.value;
    const silent = run && group(run)?.heads;
    for (const n of silent ?? []) {
      const wide = run!.result.change[0].length;
      const place = placeOf(info, Math.floor(n / wide), n % wide);
      if (place) frame(place.n, ink(canvas, "--pin"), 2);
    }
    frame(at.value.n, ink(canvas, silent ? "--ink" : "--pin"), silent ? 1 : 2);
    const hover = state.hoverHead.value;
    if (hover !== null) frame(hover, ink(canvas, "--quiet"), 1.5);
  }

  /** The head in view is seen, where a grid of very many layers scrolls; one that the ranking leads to, where the page does. */
  function follow(): void {
    const [{ info }, steps] = [doc.value!, walked.value];
    if (!width.value) return;
    const now = layout(info);
    const y = corner(now, drawn.value.indexOf(at.value.n))[1];
    if (height.value) intoSight(scroller.current!, y, now.down);
    if (steps !== walks.current && wrap.current!.checkVisibility({ visibilityProperty: true })) {
      const top = wrap.current!.getBoundingClientRect().top + y;
      if (top < 0 || top + now.down > innerHeight - (height.value ? 0 : BAR)) scrollBy(0, top - innerHeight / 2);
    }
    walks.current = steps;
  }

  function headAt(event: PointerEvent | MouseEvent): number | null {
    const place = wrap.current!.getBoundingClientRect();
    const { columns, rows, across, down } = layout(doc.value!.info);
    const c = Math.floor((event.clientX - place.left - GUTTER) / across);
    const r = Math.floor((event.clientY - place.top - HEAD) / down);
    if (c < 0 || c >= columns || r < 0 || r >= rows) return null;
    return drawn.value[r * columns + c] ?? null;
  }

  const { info } = doc.value!;
  const slot = layout(info);
  const close = isClose(slot);
  // what is asked stands there even where this text has no answer
  const names = [...new Set([...(guesses.value ? ["guess"] : []), ...known.value, "weight", "mass", "similarity", ...(effects.value ? ["effect"] : []), ...(otherDoc.value ? ["change"] : []), state.statistic.value])];
  const uniform = drawn.value.filter((n) => isUniform(info, n)).length;
  const thumbs = thumbsOf(info);
  const seen = isDuel.value ? joint.value : shown.value;
  const exact = thumbs && thumbs.rows === seen?.rows.length && thumbs.columns === seen.columns.length;
  const measured = sifted.value?.every ?? info.measured;
  const [low, high] = range.value;
  const part = info.layerNumbers.some((number, n) => number !== n) || info.headNumbers.some((numbers) => numbers.some((number, n) => number !== n));
  const every = everyRow(info.queries.tokens.length);
  const all = info.layers.length * info.heads;
  const numbers = askedNumbers.value;
  const rankedName = say(state.order.value === "low" ? "ranked_low" : "ranked");
  const notes = [
    uniform > 0 && say("uniform_count", { n: count(uniform) }),
    state.face.value === "values" ? say("grid_values") : !exact && thumbs && say("grid_hint", { n: thumbs.rows, m: thumbs.columns }),
    sifted.value && say("grid_sifted"), sifted.value && wanted.value?.normed && say("grid_normed"), measured > 1 && say("grid_measured", { n: measured }),
    every > 1 && ["similarity", "change"].includes(asked.value) && say("every_row", { n: every }),
  ].filter(Boolean);
  return (
    <section class="panel grid" aria-label={say("grid")}>
      <div class="row asking spread">
        <Asked /><Adding />
        {isDuel.value ? <Switch held={state.order} names={state.ORDERS.slice(0, 2)} says={(name) => say(`order_${name}`)} test="order" /> : 
          <Menu class="asker" aria-label={say("ask")} title={say("colour_by")} held={state.statistic} names={names} says={statisticName} test="statistic" />}
      </div>
      {toolsOpen.value && <div class="row tools">
        <Menu held={state.order} aria-label={say("order")} names={state.ORDERS} says={(name) => say(`order_${name}`)} test="order" />
        <Switch held={state.face} names={state.FACES} says={(name) => say(`face_${name}`)} test="face" />
        <button aria-pressed={gridTableOpen.value} title={say("grid_table")}
          onClick={() => state.flip(gridTableOpen)}>{say("table")} <kbd>T</kbd></button>
        <label>{say("at_least")} <Range held={state.least} /> <b>{short(faint())}</b></label>
      </div>}
      <div class="scroller" ref={scroller}><div
        class="heads" ref={wrap} role="img" data-form={slot.form} data-side={slot.side}
        aria-label={`${say("grid")}. ${say("layer_head", headName(info, at.value))}`}
        onPointerMove={(event) => { state.hoverHead.value = headAt(event); }}
        onPointerLeave={() => { state.hoverHead.value = null; }}
        onClick={(event) => { const n = headAt(event); if (n !== null) pick(event, n); }}
      >
        <canvas ref={base} /><canvas ref={over} class="over" />
      </div></div>
      <GridTable />
      <div class="foot row spread">
        <Reading close={close} />
        <span class="legend"><span>{end(low)}</span>
          <Ramp low={low} high={high} shade={(value) => shade(value, state.dark.value)} />
          <span>{end(high)}</span> <span>{say(`scale_${toneScale.value}`)}</span></span>
      </div>
      {info.layers.length <= LISTED && <div class="foot row spread strongest">
        <HeadList info={info} name={rankedName} order={numbers ? ranked.value.slice(0, RANKS) : []} numbers={numbers} test="ranks" />
        <button class="menu" title={say("ask_next")} onClick={() => goToNext(1)}>{say("next")} <kbd>e</kbd></button>
      </div>}
      {info.broken.size > 0 && <p class="note" data-test="broken">{say("broken_count", { n: count(info.broken.size) })}</p>}
      {Object.entries({
        every: notes.join(" · "),
        awaited: info.awaited.size > 0 && say("coming", { n: count(all - info.awaited.size), all: count(all) }),
        silenced: info.ablated.length > 0 && say("silenced", { heads: info.ablated.map((cell) => cell.join(".")).join(", ") }),
        notes: info.notes.join(" · "),
        part: part && say("grid_part", { layers: info.layerNumbers.join(", "), heads: [...new Set(info.headNumbers.map((numbers) => numbers.join(", ")))].join(" | ") }),
      }).map(([test, text]) => text && <p key={test} class="quiet small" data-test={test}>{text}</p>)}
      {info.unrecorded.length > 0 && <p class="small">{say("unrecorded", { names: info.unrecorded.join("; ") })}</p>}
    </section>
  );
}

/** What is asked of the grid: a question with its words, or how to ask one. */
function Asked() {
  const words = shown.value;
  const info = doc.value!.info;
  const name = asked.value;
  const about = effectAbout.value;
  const hint = (text: string) => <p class="question hint" data-test="asked">{text}</p>;
  const heading = (...parts: ComponentChildren[]) => <h2 class="question" data-test="asked">{parts}</h2>;
  if (name === "effect") {
    const alone = about?.ask.kind === "groups";
    return about ? heading(changeName(alone ? { ask: NOTHING, names: {} } : about), " ", <small>{about.target && (alone ? numberName : targetName)(about.target)}</small>) : hint(say("ask_effect"));
  }
  if (name === "guess") return heading(say("live_without", { n: drawn.value.length }));
  if (name === "change" && isDuel.value) return heading(say("ask_change"));
  if (!words || (name !== "weight" && name !== "mass" && name !== "gap")) return heading(statisticName(name), " ", <small>{statisticUnit(name)}</small>);
  if (name !== "mass" && !pinnedCell.value) return hint(say("ask_pin"));
  const sets = chosenSets.value!;
  if (name === "mass" && !sets.to.length) return hint(say("ask_choose"));
  const [from, to] = name === "mass" ? [sets.from, sets.to] : [pinnedCell.value!.queries, pinnedCell.value!.keys];
  const [query, key] = [wordOf(info.queries, from[0]), wordOf(info.keys, to[0])];
  /** True between two pieces of one word, which its name would not tell apart. */
  const isInside = info.keys === info.queries && from.length === 1 && to.length === 1 && from[0] !== to[0] && query[0] === key[0];
  /** The words of a set: the pieces of one word count once. */
  const set = (places: ArrayLike<number>, axis: Axis): string => {
    const first = Array.from(places).filter((place, n) => n === 0 || wordOf(axis, place)[0] !== wordOf(axis, places[n - 1])[0]);
    const all = first.map((place) => (isInside ? spelled : wordAt)(axis, place));
    const different = [...new Set(all)];
    return different.length === 1 ? `${different[0]}${all.length > 1 ? ` ×${all.length}` : ""}` : all.length > 3 ? say("tokens", { n: count(places.length) }) : all.join(" + ");
  };
  return heading(
    tell(name === "gap" ? "ask_gap" : "ask_which", { token: <bdi class="chip">{from.length ? set(from, info.queries) : say("ask_every")}</bdi>, text: <bdi class="chip">{set(to, info.keys)}</bdi> }),
    (state.from.value.length > 0 || state.to.value.length > 0) && <Sign says={say("ask_clear")} class="plain" onClick={clearSets}>×</Sign>,
  );
}

/** A guess where there is room for it, or where it turns. */
const guessName = ({ label, share, turns }: Guess, wide: boolean): string => `${turns || wide ? `${label} ` : ""}${short(share)}`;

/** True where each head is a colour alone: its effect has no picture. */
const isFlat = (): boolean => isSigned.value && !isDuel.value;

const thumbsOf = (info: TraceInfo): TraceInfo["thumbs"] => (isDuel.value ? changed : sifted).value?.thumbs ?? (isDuel.value ? null : info.thumbs);

/** True where numbers stand so close that only the larger weights have theirs. */
const isClose = ({ form, down }: Slots): boolean => isWeight.value && (form === "beside" || (form === "value" && down < 28));

/** How the grid lies; while a head is pointed at, or numbers are coming, that head and its number. */
function Reading({ close }: { close: boolean }) {
  const info = doc.value!.info;
  const hovered = state.hoverHead.value;
  const way = coming.value;
  const looked = hovered ?? at.value.n;
  const value = askedNumbers.value?.[looked];
  return (
    <div class="reading">
      {hovered === null && !way && !info.awaited.size ? <span class="quiet">{state.order.value === "place" ? say("grid_axes") : isDuel.value && statisticUnit("change")}<span style={{ visibility: close ? "" : "hidden" }}> · {say("text_numbers", { n: short(WRITTEN) })}</span></span> : <>
        <b>{headLabel(info, looked)}</b>
        <span>{statisticName(asked.value)}</span>
        <b>{value === undefined ? "–" : number(value)}</b>
        {way && <span class="quiet">{say("coming", { n: count(way[0]), all: count(way[1]) })}</span>}
      </>}
    </div>
  );
}
