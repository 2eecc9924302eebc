// A word through the layers: what each other word brings to it, through which head, and how much it keeps of itself.
import { useEffect, useRef } from "preact/hooks";
import { batch, computed, signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { css, grounded, sequentialAt } from "../drawing/colour";
import { measured } from "../drawing/pen";
import * as state from "../state/state";
import { besideOf } from "../state/away";
import { at, doc, headLabel } from "../state/store";
import { direction, prose } from "../text/prose";
import { isQuiet, makeShown, wordAt } from "../text/shown";
import { engine } from "../trace/engine";
import type { Followed } from "../trace/follow";
import { largestPlaces } from "../trace/strongest";
import { cut, isolated, leftToRight, say, tell, type Word } from "../words";
import { Fill, Numbers } from "./controls";
import { ink, sized, useStops } from "./canvas";
import { short } from "./slots";

/** Letters of the words over the columns, the first that fit in one line; else each column has a slanted label. */
const SAID = [28, 24];
/** Room for slanted labels, for each number beside the rows, and for a word and a head. */
const HIGH = 78;
const NUMBER = 68;
const NAMED = 130;
/** Of a page that has that room. */
const WIDE = 1000;
/** Of a row: at least and at most, on a page that scrolls, and from where on bands run from words into the one that is followed, or heads are named. */
const ROW = { least: 16, most: 104, finger: 36, bands: 64, heads: 34 };
/** Shares from here on are written. */
const WRITTEN = 0.015;

const most = (numbers: ArrayLike<number>): number => largestPlaces(numbers, 1)[0];
const got = signal<{ id: number; i: number; all: Followed; beside: Float32Array | null } | null>(null);

/** The token that is followed: the pinned one, else that of the page's opening. */
const followed = computed(() => {
  const { opening, queries: { special } } = doc.value!.info;
  // a token may have been pinned in a longer text
  return state.query.value !== null && state.query.value < special.length ? state.query.value : opening?.query ?? Math.max(0, special.indexOf(false));
});

/** All that is drawn; the pinned cell is by default the headline's. */
const view = computed(() => {
  const [one, held, i, key] = [doc.value, got.value, followed.value, state.key.value];
  if (!one || held?.id !== one.id || held.i !== i) return null;
  const { info } = one;
  const { all, beside } = held;
  const size = info.queries.tokens.length;
  const by = (layer: number, j: number): number[] => Array.from({ length: info.heads }, (_, head) => all.shares[(layer * info.heads + head) * size + j]);
  /** Of the word that brings most: its token, layer and head; and more (headscope.page.follow_parts). NaN where no word brings much. */
  const found = info.followed!.slice(i * 11, i * 11 + 11);
  const cell = key !== null && key < size && key !== i ? { ...at.value, j: key } : found[0] >= 0 ? { j: found[0], layer: found[1], n: found[2] } : { j: Number(!i), layer: 0, n: 0 };
  return {
    info, i, size, all, by, found, cell, layers: info.layers.map((_, layer) => layer),
    total: (layer: number, j: number): number => all.total[layer * size + j],
    best: (layer: number, j: number): number => layer * info.heads + most(by(layer, j)),
    /** Of a token: 0, how much the word turns where it is masked; 1, its rollout. */
    beside: beside && ((measure: number, layer: number, j: number): number => beside[(measure * info.layers.length + layer) * size + j]),
    name: (j: number): ComponentChildren => <bdi>{j >= 0 && cut(wordAt(info.queries, j))}</bdi>,
  };
});
type View = NonNullable<typeof view.value>;

function pin(layer: number, j: number, n = view.value!.best(layer, j)): void {
  const { i, info } = view.value!;
  if (j !== i) batch(() => { [state.query.value, state.key.value, state.layer.value, state.head.value] = [i, j, layer, n % info.heads]; });
}

/** Follow another word. */
const go = (j: number): void => batch(() => { [state.query.value, state.key.value] = [j, null]; });

/** The columns' tokens, from the left. */
let columns: number[] = [];

/** To the cell beside the pinned one. */
export function walk(down: number, right: number): void {
  if (!view.value) return;
  const { cell, i, layers } = view.value;
  const others = columns.filter((j) => j !== i);
  pin(layers[cell.layer + down] ?? cell.layer, others[others.indexOf(cell.j) + right] ?? cell.j);
}

/** The pinned cell in its head. */
export function openHead(): void {
  if (!view.value) return;
  const { layer, j, n } = view.value.cell;
  pin(layer, j, n);
  state.pane.value = "head";
}

export function Follow() {
  const one = doc.value!;
  const { id, info } = one;
  const i = followed.value;
  useEffect(() => {
    document.documentElement.dataset.painted ??= "";
    if (info.followed) void engine.ask("follow", { trace: id, i }, "follow").then(async (all) => {
      got.value = { id, i, all, beside: null };
      const beside = await besideOf(one, i);
      if (got.value.all === all) got.value = { id, i, all, beside };
    }).catch(() => undefined);
  }, [id, i]);
  const now = view.value;
  return <section class="follow" aria-label={say("pane_follow")} aria-busy={!now}>{now && <><Headline {...now} /><Ways {...now} /><Foot {...now} /></>}</section>;
}

function Headline({ info, i, size, total, layers, found, beside, name }: View) {
  const kept = layers.map((layer) => total(layer, i));
  const [least, greatest] = [short(Math.min(...kept)), short(Math.max(...kept))];
  const [j, , best, other, , hardest, weight, share, bringer, weight2, share2] = found;
  const [layer, before] = [found[1], found[4]].map((one) => info.layerNumbers[one]);
  const numbers = { kept: least === greatest ? least : say("follow_span", { least, most: greatest }), layer, before, head: j >= 0 ? headLabel(info, best) : "" };
  const parts = { token: name(i), text: name(j), other: name(other) };
  /** The word that comes first by masking, or by rollout, in the end. */
  const first = (measure: number): number => most(Array.from({ length: size }, (_, at) => beside!(0, layers.length - 1, at) >= 0 ? beside!(measure, layers.length - 1, at) : -1));
  const [masked, flowed] = beside ? [first(0), first(1)] : [];
  return (
    <>
      <h1>{tell(!(j >= 0) ? "follow_nothing" : !(other >= 0) ? "follow_one" : before < layer ? "follow_then" : "follow_after", parts, numbers)}</h1>
      {j >= 0 && <p class="quiet" data-test="hardest">{say("follow_keeps", numbers)} {tell(hardest === bringer ? "follow_same" : "follow_looks", parts, {
        head: headLabel(info, hardest), weight: short(weight), share: short(share), best: headLabel(info, bringer), weight2: short(weight2), share2: short(share2),
      })} {masked !== undefined && <span data-test="beside">{tell(masked === j && flowed === j ? "follow_agree" : "follow_differ",
        { ...parts, other: name(masked), third: name(flowed!) }, { turn: short(beside!(0, layers.length - 1, masked), 0.1), turn2: short(beside!(0, layers.length - 1, j), 0.1) })}</span>}</p>}
    </>
  );
}

/** The rows: a cell for each word, over bands into the word that is followed; beside them what it keeps, and more. */
function Ways({ info, i, size, total, best, layers, beside, cell, name }: View) {
  const box = useRef<HTMLDivElement>(null);
  const room = useSignal([0, 0]);
  useStops(() => [sized(() => { room.value = [box.current!.clientWidth, box.current!.clientHeight]; }, box.current)]);
  const [wide, high] = room.value;
  const labels = makeShown(info, "all", true, false).rows;
  const texts = prose(labels, info.queries).map(({ text }) => text.trim());
  const way = direction(labels);
  const measure = (text: string, px = 12): number => measured(`600 ${px}px ${ink(document.documentElement, "--text")}`, text).width + 4;
  const heads = measure(headLabel(info, layers.length * info.heads - 1));
  const digits = measure(".88") - 1;
  const gutter = measure(say("follow_layer")) + 4;
  /** A column has the room of the longest word above it; Chinese and Japanese break anywhere. */
  const column = (word: Word): number => Math.max(NUMBER, ...say(word).split(/[^\p{sc=Latin}]+/u).map((text) => measure(text) + 14));
  const aside = [column("follow_kept"), NAMED, ...(beside ? [column("follow_turn"), column("follow_rollout")] : [])];
  const besides = (): number => aside.reduce((a, b) => a + b, 0);
  const within = wide - gutter - besides();
  const spoken = (letters: number): number[] => texts.map((text, j) => Math.max(heads, measure(text, isQuiet(labels[j]) ? 14 : letters)));
  const spare = (letters: number): number => (within - spoken(letters).reduce((a, b) => a + b)) / size;
  const px = SAID.find((letters) => spare(letters) >= 0);
  // slanted: as many as fit, those that bring most, and the rest as one
  if (!px) aside.length = wide < WIDE ? 0 : 2;
  const across = wide - gutter - Math.max(24, besides());
  const fit = Math.floor(across / Math.max(20, digits));
  const places = texts.map((_, j) => j);
  const totals = Float32Array.from(places, (j) => (j === i || j === cell.j ? 9 : layers.reduce((sum, layer) => sum + total(layer, j), 0)));
  columns = !px && size > fit ? largestPlaces(totals, fit - 1).sort((a, b) => a - b) : places;
  const shown = columns.length < size ? [...columns, -1] : columns;
  const widths = px ? spoken(px).map((one) => one + Math.min(24, spare(px))) : shown.map(() => Math.min(64, across / shown.length));
  if (way === "rtl") columns = [...columns].reverse();
  const head = px ? px + 16 : HIGH;
  const row = wide < 900 ? ROW.finger : Math.max(ROW.least, Math.min(ROW.most, Math.floor((high - head) / layers.length)));
  const banded = px && row >= ROW.bands;
  const share = (layer: number, j: number): number => (j < 0 ? 1 - columns.reduce((sum, one) => sum + total(layer, one), 0) : total(layer, j));
  const middle = (c: number): number => {
    const x = gutter + widths.slice(0, c).reduce((a, b) => a + b, 0) + widths[c] / 2;
    return way === "rtl" ? wide - x : x;
  };
  const template = { gridTemplateColumns: [gutter, ...widths, ...aside].map((one) => `${one}px`).join(" ") };
  const strongest = layers.map((layer) => most(places.map((j) => (j === i ? -1 : total(layer, j)))));
  /** Beside the rows: words, values, where bars end; of rollout, an even share. */
  const measures: [test: string, says: Word, value: (layer: number) => number, even?: number][] = [
    ["kept", "follow_kept", (layer) => total(layer, i)], ["most", "follow_most", (layer) => total(layer, strongest[layer])],
    ["turn", "follow_turn", (layer) => beside!(0, layer, cell.j)], ["rollout", "follow_rollout", (layer) => beside!(1, layer, cell.j), 1 / size],
  ];
  measures.length = aside.length;
  const look = (j: number): string => (j === i ? "looking" : j === cell.j ? "pin" : j < 0 || isQuiet(labels[j]) ? "special" : "");
  return (
    <>
      {!px && <p class="sentence small" dir={way}>{texts.map((text, j) => <button key={j} class={`plain ${look(j)}`} aria-pressed={j === i} onClick={() => go(j)}>{text}</button>)}</p>}
      <div class={`ways ${banded ? "banded" : px ? "" : "slanted"}`} ref={box} role="grid" tabIndex={0} dir={way} aria-label={say("pane_follow")} aria-activedescendant={`way-${cell.layer}-${cell.j}`}>
        <div role="row" style={{ ...template, height: head }}>
          <small role="columnheader">{say("follow_layer")}</small>
          {shown.map((j) => {
            const text = texts[j] ?? say("follow_others");
            return <span key={j} role="columnheader" data-label={text} title={labels[j]?.title} class={look(j)} style={px ? { fontSize: isQuiet(labels[j]) ? 14 : px } : {}} onClick={() => { if (j >= 0) go(j); }}><bdi class={px ? "" : "unseen"}>{text}</bdi></span>;
          })}
          {measures.map(([test, says]) => <small key={test} role="columnheader">{say(says)}</small>)}
        </div>
        {layers.map((layer) => {
          const own = shown.indexOf(i);
          const band = Math.max(46, widths[own]);
          const [x, keeps, from] = [middle(own), (total(layer, i) * band) / 2, 40];
          const edges = [x - keeps, x + keeps];
          return (
            <div key={layer} role="row" class={layer === cell.layer ? "here" : ""} style={{ ...template, height: row }}>
              {banded && <svg width={wide} height={row} aria-hidden="true">
                <path class="self" d={`M${x - band / 2} 0C${x - band / 2} 18 ${x - keeps} 8 ${x - keeps} 26V${row}H${x + keeps}V26C${x + keeps} 8 ${x + band / 2} 18 ${x + band / 2} 0Z`} />
                {shown.map((_, c) => c).filter((c) => c !== own && total(layer, c) >= WRITTEN).sort((a, b) => Math.abs(a - own) - Math.abs(b - own)).map((c) => {
                  const [thick, start, right] = [total(layer, c) * band, middle(c), Number(middle(c) > x)];
                  edges[right] += right ? thick : -thick;
                  const end = edges[right] + (right ? -thick : thick) / 2;
                  return <path key={c} class={layer === cell.layer && c === cell.j ? "here" : ""} d={`M${start} ${from}C${start} ${from + (row - from) * 0.75} ${end} ${from - 6} ${end} ${row}`} stroke-width={Math.max(1, thick)} stroke={css(sequentialAt(Math.sqrt(Math.max(0.1, total(layer, c))), state.dark.value))} />;
                })}
              </svg>}
              <small role="rowheader">{info.layerNumbers[layer]}</small>
              {shown.map((j, c) => {
                const value = share(layer, j);
                const pinned = layer === cell.layer && j === cell.j;
                const written = (Math.abs(value) >= WRITTEN || pinned) && widths[c] >= digits;
                const through = j >= 0 && j !== i ? headLabel(info, best(layer, j)) : "";
                return (
                  <span key={j} id={`way-${layer}-${j}`} role="gridcell" data-share={value} class={j === i ? "self" : pinned ? "pinned" : ""} aria-selected={pinned} onClick={() => { if (through) pin(layer, j); }}
                    title={through && leftToRight(`${isolated(texts[j])} ${short(value)} · ${through}`)} style={j === i ? {} : grounded(sequentialAt(Math.sqrt(Math.max(0, value)), state.dark.value))}>
                    {written && short(value)}{written && row >= ROW.heads && widths[c] >= heads && <small>{through}</small>}
                  </span>
                );
              })}
              {measures.map(([test, , value, even]) => {
                const end = test === "kept" ? 1 : Math.max(...layers.map(value));
                const says = test === "most" ? say("follow_by", { text: texts[strongest[layer]], share: short(value(layer)), head: headLabel(info, best(layer, strongest[layer])) }) : short(value(layer), test === "kept" ? undefined : 0.1);
                return (
                  <span key={test} role="gridcell" class={`figure ${test}`} data-test={test} title={leftToRight(says)}>
                    <bdi dir="ltr">{says}</bdi>
                    {banded && <span class="bar"><Fill share={value(layer) / end} />{even && <s style={{ insetInlineStart: `${(100 * even) / end}%` }} />}</span>}
                  </span>
                );
              })}
            </div>
          );
        })}
      </div>
      <p class="quiet small">{tell("follow_rows", { token: name(i) })}{measures.length > 2 && [tell("follow_measured", { text: name(cell.j) }), banded && say("follow_tick")]}</p>
    </>
  );
}

/** The pinned cell: from the weight to what all heads bring. */
function Foot({ info, i, size, all, by, total, beside, cell: { layer, j, n }, name }: View) {
  const head = headLabel(info, n);
  const heads = by(layer, j);
  const turn = beside?.(0, layer, j);
  return (
    <div class="panel cell line">
      <h2 data-test="way">{tell("follow_cell", { text: <b class="pin">{name(j)}</b>, token: <b class="pin">{name(i)}</b> }, { n: info.layerNumbers[layer] })}
        <small class="headlist">{largestPlaces(heads, 3).map((h) => {
          const one = layer * info.heads + h;
          return <button key={h} aria-pressed={one === n} onClick={() => pin(layer, j, one)}>{headLabel(info, one)} <b>{short(heads[h])}</b></button>;
        })}</small></h2>
      <Numbers of={[
        ["way-weight", short(all.weights[n * size + j]), say("follow_weight", { head })],
        ["way-share", short(all.shares[n * size + j]), say("follow_share", { head })],
        ["way-total", info.heads > 1 ? short(total(layer, j)) : "", say("follow_total", { n: info.heads })],
        ["way-turn", turn === undefined ? "" : short(turn, 0.1), tell("follow_masked", { text: name(j) })],
      ]} />
      <span class="row"><button class="strong" data-test="open-head" onClick={openHead}>{say("follow_open", { head })} <kbd>⏎</kbd></button></span>
    </div>
  );
}
