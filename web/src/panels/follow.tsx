// A word through the layers: what each other word brings to it, through which head, and how much it keeps of itself.
import { useEffect, useRef } from "preact/hooks";
import { batch, computed, signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { css, inkOn, sequentialAt } from "../drawing/colour";
import { brought, elsewhere, LEAST, most, type Brought } from "../heads/brought";
import * as state from "../state/state";
import { besideOf } from "../state/away";
import { at, doc, headLabel } from "../state/store";
import { direction, prose } from "../text/prose";
import { isQuiet, makeShown, placed, wordAt } from "../text/shown";
import { engine } from "../trace/engine";
import type { Followed } from "../trace/follow";
import { largestPlaces } from "../trace/strongest";
import { letters, say, tell, type Word } from "../words";
import { Fill } from "./bar";
import { ink } from "./canvas";
import { EmptyCentre } from "./centre";
import { short } from "./slots";

/** Letters of the words over the columns, the first that fit in one line; else each column has a slanted label. */
const SAID = [28, 24];
const WIDE = 1000;
/** Room at the right for each column of numbers; and for two beside slanted labels, of which one names a word and a head. */
const ASIDE = 84;
const NAMED = 250;
/** Of a slanted label. */
const HIGH = 78;
const LONGEST = 12;
/** Of a row: at least, at most, on a page that scrolls, and from where on bands run from words to the one that is followed. */
const ROW = { least: 16, most: 104, finger: 36, bands: 64, heads: 34 };
/** Of a cell over its bands, and of its head's name. */
const CELL = 20;
const NAME = 16;
/** What a number from .02 on is rounded from. */
const WRITTEN = LEAST - 0.005;

const got = signal<{ id: number; i: number; all: Followed; beside: Float32Array | null } | null>(null);

/** The token that is followed: the pinned one, else that of the page's opening. */
const followed = computed(() => {
  const info = doc.value?.info;
  return info ? state.query.value ?? info.opening?.query ?? Math.max(0, info.queries.special.indexOf(false)) : 0;
});

/** All that is drawn: sums over heads, the head that brings most of each, the words, and the pinned cell, by default the headline's. */
const view = computed(() => {
  const one = doc.value;
  const [held, i] = [got.value, followed.value];
  if (!one || held?.id !== one.id || held.i !== i) return null;
  const { info } = one;
  const { all: { kept, shares, weights }, all, beside } = held;
  const [size, { heads }] = [info.queries.tokens.length, info];
  const by = (layer: number, j: number): number[] => Array.from({ length: heads }, (_, head) => shares[(layer * heads + head) * size + j]);
  const total = (layer: number, j: number): number => (j === i ? kept[layer] : by(layer, j).reduce((a, b) => a + b, 0));
  /** How much a masked token turns the word by then, and how much rollout says has come from it; where they are known. */
  const turn = beside && ((layer: number, j: number): number => beside[layer * size + j]);
  const rolled = beside && ((layer: number, j: number): number => beside[(info.layers.length + layer) * size + j]);
  const words = brought(all, info, i);
  const best = (layer: number, j: number): number => layer * heads + most(by(layer, j));
  const [key, first] = [state.key.value, words[0]];
  const cell = key !== null && key < size && key !== i ? { ...at.value, key } : { layer: first?.layer ?? 0, key: first?.tokens[0] ?? (i ? 0 : size - 1), n: first?.best.n ?? 0 };
  return { info, i, kept, size, by, total, turn, rolled, best, words, cell, weight: weights[cell.n * size + cell.key], share: shares[cell.n * size + cell.key] };
});
type View = NonNullable<typeof view.value>;

function pin(layer: number, key: number, n: number = view.value!.best(layer, key)): void {
  const { i, info: { heads } } = view.value!;
  if (key === i) return;
  batch(() => {
    [state.query.value, state.key.value, state.layer.value, state.head.value] = [i, key, layer, n % heads];
  });
}

let columns: readonly number[] = [];

/** To the cell beside the pinned one. */
export function walk(down: number, across: number): void {
  const now = view.value;
  if (!now) return;
  const { cell, i, info } = now;
  const others = columns.filter((j) => j !== i);
  const next = others.indexOf(cell.key) + across * (isRtl ? -1 : 1);
  pin(Math.max(0, Math.min(info.layers.length - 1, cell.layer + down)), others[Math.max(0, Math.min(others.length - 1, next))]);
}
let isRtl = false;

/** The pinned cell in its head. */
export function openHead(): void {
  const now = view.value;
  if (!now) return;
  pin(now.cell.layer, now.cell.key, now.cell.n);
  state.pane.value = "head";
}

export function Follow() {
  const one = doc.value!;
  const i = followed.value;
  useEffect(() => {
    document.documentElement.dataset.painted ??= "";
    if (one.info.follows && i < one.info.queries.tokens.length) void engine.ask("follow", { trace: one.id, i }, "follow").then(async (all) => {
      const now = { id: one.id, i, all };
      got.value = { ...now, beside: null };
      const beside = await besideOf(one, i);
      if (beside && got.value.all === all) got.value = { ...now, beside };
    }, () => undefined);
  }, [one.id, i]);
  if (!one.info.follows) return <EmptyCentre>{say("follow_none")}</EmptyCentre>;
  const now = view.value;
  return <section class="follow" aria-label={say("pane_follow")} aria-busy={!now}>{now && <><Headline {...now} /><Ways {...now} /><Foot {...now} /></>}</section>;
}

const quoted = (text: string): ComponentChildren => <bdi>{text}</bdi>;

function Headline({ info, i, kept, words, turn, rolled }: View) {
  const name = (j: number): ComponentChildren => quoted(wordAt(info.queries, j));
  const [first] = words;
  const keeps = { least: short(Math.min(...kept)), most: short(Math.max(...kept)), n: info.layers.length, from: short(LEAST) };
  if (!first || words.every(({ share }) => share < LEAST)) return <h1 data-test="followed">{tell("follow_nothing", { token: name(i) }, keeps)}</h1>;
  const { best, hardest } = first;
  const other = elsewhere(words);
  const parts = { token: name(i), text: name(first.tokens[0]), other: other && name(other.tokens[0]) };
  const looks = { head: headLabel(info, hardest.n), weight: short(hardest.weight), share: short(hardest.share), best: headLabel(info, best.n), weight2: short(best.weight), share2: short(best.share) };
  const last = info.layers.length - 1;
  const strongest = (value: NonNullable<typeof turn>, { tokens }: Brought): number => Math.max(...tokens.map((j) => value(last, j)));
  const top = (value: NonNullable<typeof turn>): Brought => words[most(words.map((one) => strongest(value, one)))];
  const [masked, flowed] = turn && rolled ? [top(turn), top(rolled)] : [];
  const word: Word = !other ? "follow_one" : other.layer < first.layer ? "follow_then" : "follow_after";
  return (
    <>
      <h1 data-test="followed">{tell(word, parts, { layer: info.layerNumbers[first.layer], head: headLabel(info, best.n), before: other ? info.layerNumbers[other.layer] : "" })}</h1>
      <p class="quiet" data-test="hardest">{tell("follow_keeps", {}, keeps)} {tell(hardest.n === best.n ? "follow_same" : "follow_looks", parts, looks)} {turn && masked && flowed && <span data-test="beside">{masked === first && flowed === first
        ? tell("follow_agree", parts, { turn: short(strongest(turn, first)) })
        : tell("follow_differ", { ...parts, other: name(masked.tokens[0]), third: name(flowed.tokens[0]) }, { turn: short(strongest(turn, masked)), turn2: short(strongest(turn, first)) })}</span>}</p>
    </>
  );
}

/** Where columns and rows stand in a box of this size. */
function plan(now: View, texts: string[], wide: number, high: number) {
  const pen = document.createElement("canvas").getContext("2d")!;
  const measure = (text: string, px = 12, bold = ""): number => {
    pen.font = `${bold} ${px}px ${ink(document.documentElement, "--text")}`;
    return Math.ceil(pen.measureText(text).width);
  };
  const { info: { queries, layers, heads }, size, i, cell } = now;
  const gutter = measure(say("follow_layer")) + 8;
  const digits = measure(".88", 12, "600") + 2;
  const name = measure(`${layers.length - 1}.${heads - 1}`) + 4;
  const down = (head: number): number => (wide < 900 ? ROW.finger : Math.max(ROW.least, Math.min(ROW.most, Math.floor((high - head) / layers.length))));
  const every = texts.map((_, j) => j);
  const beside = now.turn ? 4 : 2;
  for (const px of SAID) {
    const widths = texts.map((text, j) => Math.max(name, measure(text, queries.special[j] ? 14 : px, j === i ? "600" : "") + 8));
    const spare = wide - gutter - beside * ASIDE - widths.reduce((a, b) => a + b, 0);
    if (spare < 0) continue;
    const head = px + 16;
    const row = down(head);
    return { px, gutter, head, row, digits, name, places: every, others: false, widths: widths.map((one) => one + Math.min(24, spare / size)), bands: row >= ROW.bands, aside: beside };
  }
  const aside = wide >= WIDE ? NAMED : 24;
  const room = wide - gutter - aside;
  const most = Math.floor(room / Math.max(20, digits));
  const others = size > most;
  const totals = Float32Array.from(every, (j) => (j === i || j === cell.key ? Infinity : layers.reduce((sum, _, layer) => sum + now.total(layer, j), 0)));
  const places = others ? largestPlaces(totals, most - 1).sort((a, b) => a - b) : every;
  const count = places.length + Number(others);
  return { px: 0, gutter, head: HIGH, row: down(HIGH), digits, name, places, others, widths: Array<number>(count).fill(Math.min(64, room / count)), bands: false, aside: aside === NAMED ? 1 : 0 };
}

/** The rows: a cell for each word, over bands into the word that is followed; beside them what it keeps, and more. */
function Ways(now: View) {
  const { info, i, size, kept, total, turn, rolled, best, cell } = now;
  const box = useRef<HTMLDivElement>(null);
  const side = useSignal([0, 0]);
  useEffect(() => {
    const measure = (): void => { side.value = [box.current!.clientWidth, box.current!.clientHeight]; };
    const observer = new ResizeObserver(measure);
    observer.observe(box.current!);
    void document.fonts.ready.then(() => { if (box.current) measure(); });
    return () => observer.disconnect();
  }, []);
  const [wide, high] = side.value;
  const labels = makeShown(info, "all", true, false).rows;
  const texts = prose(labels, info.queries).map(({ text }) => text.trim());
  const { px, gutter, head, row, digits, name, places, others, widths, bands, aside } = plan(now, texts, wide, high);
  columns = places;
  isRtl = direction(labels) === "rtl";
  const layers = info.layers.map((_, layer) => layer);
  const ends = widths.reduce<number[]>((all, one) => [...all, all[all.length - 1] + one], [gutter]);
  const mirrored = (x: number): number => (isRtl ? wide - x : x);
  const middle = (c: number): number => mirrored((ends[c] + ends[c + 1]) / 2);
  const shown = (value: number, j: number, layer: number): boolean => Math.abs(value) >= WRITTEN || j === i || (layer === cell.layer && j === cell.key);
  const rest = (layer: number): number => 1 - places.reduce((sum, j) => sum + total(layer, j), 0);
  const key = <b class="pin"><bdi>{wordAt(info.queries, cell.key)}</bdi></b>;
  const here = (value: (layer: number, j: number) => number): number[] => layers.map((layer) => value(layer, cell.key));
  /** Numbers beside each row: what they are called, their values, where their bars end, whether small ones count; of rollout, an even share. */
  const measures: { test: string; says: ComponentChildren; values: number[]; end?: number; small?: number; even?: number }[] = [
    { test: "kept", says: say("follow_kept"), values: [...kept], end: 1 },
    ...(aside > 1 ? [{ test: "brings", says: tell("follow_of", { text: key }), values: here(total) }] : []),
    ...(aside > 2 ? [{ test: "turn", says: say("follow_turn"), values: here(turn!), small: 0.1 }, { test: "rollout", says: say("follow_rollout"), values: here(rolled!), small: 0.1, even: 1 / size }] : []),
  ];
  const taken = (layer: number): ComponentChildren => {
    const j = most(texts.map((_, place) => (place === i ? -1 : total(layer, place))));
    return tell("follow_by", { text: quoted(texts[j]) }, { share: short(total(layer, j)), head: headLabel(info, best(layer, j)) });
  };
  const template = { gridTemplateColumns: `${gutter}px ${widths.map((one) => `${one.toFixed(2)}px`).join(" ")}${aside > 1 ? ` repeat(${aside}, minmax(0, 1fr))` : aside ? " minmax(0, 0.4fr) minmax(0, 1fr)" : ""}` };
  return (
    <>
      {!px && <p class="sentence small" dir={isRtl ? "rtl" : "ltr"}>{texts.map((text, j) => (
        <button key={j} class={`plain${isQuiet(labels[j]) ? " special" : ""}${j === i ? " looking" : j === cell.key ? " seen" : ""}`} aria-pressed={j === i} onClick={() => go(j)}><bdi>{text}</bdi></button>
      ))}</p>}
      <div class={`ways${bands ? " banded" : ""}`} ref={box} role="grid" tabIndex={0} dir={isRtl ? "rtl" : "ltr"} aria-label={say("pane_follow")} aria-activedescendant={`way-${cell.layer}-${cell.key}`} data-test="ways"
        onClick={(event) => {
          const { layer, at: j } = (event.target as HTMLElement).closest<HTMLElement>("[data-at]")?.dataset ?? {};
          if (j !== undefined) layer === undefined ? go(Number(j)) : pin(Number(layer), Number(j));
        }}>
        <svg width={wide} height={head + row * layers.length} aria-hidden="true">
          {px ? bands && layers.map((layer) => <Bands key={layer} {...now} {...{ layer, places, middle, row }} wide={Math.max(46, widths[i])} top={head + layer * row} />)
            : [...places.map((j) => [j, placed(labels[j])] as const), ...(others ? [[-1, say("follow_others")] as const] : [])].map(([j, text], c) => (
              <text key={c} class={j === i || j === cell.key ? "pin" : j < 0 || isQuiet(labels[j]) ? "special" : ""} transform={`translate(${middle(c) + 4} ${head - 6}) rotate(-50)`}>{letters(text).slice(0, LONGEST).join("")}</text>
            ))}
        </svg>
        <div role="row" style={{ ...template, height: head }}>
          <small role="columnheader" class="quiet">{say("follow_layer")}</small>
          {places.map((j) => (
            <span key={j} role="columnheader" data-at={j} aria-label={texts[j]} title={labels[j].title} class={`${isQuiet(labels[j]) ? "special" : ""}${j === i ? " looking" : j === cell.key ? " pin" : ""}`} style={{ fontSize: isQuiet(labels[j]) ? 14 : px }}>{px > 0 && <bdi>{texts[j]}</bdi>}</span>
          ))}
          {others && <span role="columnheader" aria-label={say("follow_others")} />}
          {aside > 0 && measures.map(({ test, says }) => <small key={test} role="columnheader" class="quiet">{says}</small>)}
          {aside === 1 && <small role="columnheader" class="quiet">{say("follow_most")}</small>}
        </div>
        {layers.map((layer) => (
          <div key={layer} role="row" class={layer === cell.layer ? "here" : ""} style={{ ...template, height: row }}>
            <small role="rowheader" class="quiet">{info.layerNumbers[layer]}</small>
            {places.map((j, c) => {
              const value = total(layer, j);
              const through = headLabel(info, best(layer, j));
              const pinned = layer === cell.layer && j === cell.key;
              const colour = sequentialAt(Math.sqrt(Math.max(0, value)), state.dark.value);
              const written = shown(value, j, layer) && widths[c] >= digits && row >= ROW.least;
              return (
                <span key={j} id={`way-${layer}-${j}`} role="gridcell" data-layer={layer} data-at={j} data-share={value} class={j === i ? "self" : pinned ? "pinned" : ""} aria-selected={pinned}
                  title={j === i ? undefined : `${texts[j]} ${short(value)} · ${through}`} style={j === i ? {} : { background: css(colour), color: inkOn(colour) }}>
                  {written && short(value)}{written && j !== i && row >= ROW.heads && widths[c] >= name && <small class={pinned ? "pin" : ""}>{through}</small>}
                </span>
              );
            })}
            {others && <span role="gridcell" data-share={rest(layer)}>{short(rest(layer))}</span>}
            {aside > 0 && measures.map(({ test, values, end = Math.max(...values, 1e-9), small, even }) => (
              <span key={test} role="gridcell" class={`figure ${test}`} data-test={test}><b>{short(values[layer], small)}</b>{bands && <span class="bar"><Fill share={values[layer] / end} />{even && even < end && <s style={{ insetInlineStart: `${(100 * even) / end}%` }} />}</span>}</span>
            ))}
            {aside === 1 && <span role="gridcell" class="figure most">{taken(layer)}</span>}
          </div>
        ))}
      </div>
      <p class="quiet small">{tell(bands ? "follow_rows" : "follow_cells", { token: quoted(wordAt(info.queries, i)) }, { from: short(LEAST) })}</p>
    </>
  );
}

/** Follow another word. */
function go(j: number): void {
  batch(() => { [state.query.value, state.key.value] = [j, null]; });
}

/** A layer's new vector: the word's own band narrows to what it keeps, and the others' fill it up from both sides. */
function Bands({ i, total, kept, cell, layer, places, middle, row, wide, top }: View & {
  layer: number; places: readonly number[]; middle: (c: number) => number; row: number; wide: number; top: number;
}) {
  const own = places.indexOf(i);
  const x = middle(own);
  const [half, keeps, end, from] = [wide / 2, (kept[layer] * wide) / 2, top + row, top + CELL + NAME + 4];
  const edges = { "-1": x - keeps, 1: x + keeps };
  const drawn = places.map((_, c) => c).filter((c) => c !== own && total(layer, places[c]) >= WRITTEN).sort((a, b) => Math.abs(a - own) - Math.abs(b - own)).map((c) => {
    const thick = total(layer, places[c]) * wide;
    const way = middle(c) < x ? -1 : 1;
    edges[way] += (way * thick) / 2;
    const to = edges[way];
    edges[way] += (way * thick) / 2;
    const pinned = layer === cell.layer && places[c] === cell.key;
    return <path key={c} class={pinned ? "here" : ""} d={`M${middle(c)} ${from}C${middle(c)} ${from + (end - from) * 0.75} ${to} ${from - 6} ${to} ${end}`} stroke-width={Math.max(1, thick)} stroke={css(sequentialAt(Math.sqrt(Math.max(0.1, total(layer, places[c]))), state.dark.value))} />;
  });
  return (
    <>
      <path class="self" d={`M${x - half} ${top}C${x - half} ${top + 18} ${x - keeps} ${top + 8} ${x - keeps} ${top + 26}V${end}H${x + keeps}V${top + 26}C${x + keeps} ${top + 8} ${x + half} ${top + 18} ${x + half} ${top}Z`} />
      {drawn}
    </>
  );
}

/** The pinned cell: from the weight to what all heads bring. */
function Foot({ info, i, by, total, turn, cell, weight, share }: View) {
  const { layer, key, n } = cell;
  const head = headLabel(info, n);
  const heads = by(layer, key);
  const numbers: [string, string, ComponentChildren][] = [
    ["weight", short(weight), say("follow_weight", { head })], ["share", short(share), say("follow_share", { head })], ["total", short(total(layer, key)), say("follow_total", { n: info.heads })],
    ...(turn && !Number.isNaN(turn(layer, key)) ? [["turn", short(turn(layer, key), 0.1), tell("follow_masked", { text: quoted(wordAt(info.queries, key)) })] as [string, string, ComponentChildren]] : []),
  ];
  return (
    <div class="panel cell line">
      <h2 data-test="way">{tell("follow_cell", { text: <bdi class="pin">{wordAt(info.queries, key)}</bdi>, token: <bdi class="pin">{wordAt(info.queries, i)}</bdi> }, { n: info.layerNumbers[layer] })}
        <small class="headlist">{say("follow_heads")} {largestPlaces(heads, 3).map((h) => {
          const here = layer * info.heads + h;
          return <button key={h} class={here === n ? "here" : ""} aria-pressed={here === n} onClick={() => pin(layer, key, here)}>{headLabel(info, here)} <b>{short(heads[h])}</b></button>;
        })}</small></h2>
      <ol class="numbers5">{numbers.map(([test, value, says]) => <li key={test}><b data-test={`way-${test}`}>{value}</b><small>{says}</small></li>)}</ol>
      <span class="row"><button class="strong" data-test="open-head" onClick={openHead}>{say("follow_open", { head })} <kbd>⏎</kbd></button></span>
    </div>
  );
}
