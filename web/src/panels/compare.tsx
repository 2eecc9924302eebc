// Two texts, runs or heads, their tokens aligned: what changes in the pinned cell, both texts, and B - A.
import { count, cut, number, say, tell } from "../words";
import * as state from "../state/state";
import { apart, docB, joined, joint, pairs, partner, slotB, swap, type Slot } from "../state/comparing";
import { fullName, shortNames } from "../text/naming";
import { pinnedCell } from "../heads/asking";
import { statisticName } from "../heads/catalog";
import { byNumber } from "../heads/order";
import { proposed } from "../heads/pinned";
import { mean, pick, title } from "../heads/several";
import { table } from "../heads/statistics";
import { picture, rowsOf, wanted, wantedKey, type Picture, type Wanted } from "../drawing/pictures";
import { direction } from "../text/prose";
import { TANGLE } from "../text/sentence";
import { at, column, doc, docs, failure, headLabel, headName, headOf, lookAt, lookedColumn, lookedRow, openTrace, placeOfDoc, reason, row, setB, shown, type Doc } from "../state/store";
import { largestPlaces } from "../trace/strongest";
import type { TraceInfo } from "../trace/trace";
import { Centre, Fill, Menu, Sign } from "./controls";
import { useFetched } from "./fetched";
import { KeyLine } from "./keyline";
import { Legend } from "./legend";
import { LEAST, Matrix, numbersFrom } from "./matrix";
import { pointed } from "./pointed";
import { Ink, isOne, said as spelled } from "./ribbon";
import { change as plus, short } from "./slots";
import { isQuiet, marked, type Label } from "../text/shown";

const usePicture = (want: Wanted | null): Picture | null => useFetched(want ? wantedKey(want) : "", () => picture(want!));

/** Row r of a picture. */
const useRow = (want: Wanted | null, r: number | null): Float32Array | null =>
  useFetched(want && r !== null && r >= 0 ? `${wantedKey(want)} ${r}` : "", () => rowsOf(want!, r!));

export async function openFile(file: File): Promise<void> {
  try {
    const found = await openTrace({ bytes: await file.arrayBuffer() }, null);
    failure.value = null;
    setB(placeOfDoc(found));
    state.pane.value = "compare";
  } catch (error) {
    failure.value = say("file_refused", { why: `${file.name}: ${reason(error)}` });
  }
}

/** What a side of the comparison holds: a text or run, and a head. */
function Chooser({ name, holds, head, onText, onHead }: {
  name: "A" | "B"; holds: Doc | null; head: number | null; onText: (index: number) => void; onHead: (layer: number, head: number) => void;
}) {
  const short = shortNames();
  const info = holds?.info;
  return (
    <span class="slot">
      <b>{name}</b>
      <Menu value={holds ? placeOfDoc(holds) : ""} names={[...(holds ? [] : ["" as const]), ...docs.value.keys()]} says={(index) => (index === "" ? say("compare_none") : short[index])}
        aria-label={say("compare_text", { name })} title={holds ? fullName(holds) : ""} test={name === "A" ? "compare-a" : "compare-with"} onPick={(index) => { if (index) onText(Number(index)); }} />
      {info && <Menu value={head ?? ""} names={[...(head === null ? ["" as const] : []), ...Array(info.layers.length * info.heads).keys()]} says={(n) => (n === "" ? "–" : headLabel(info, n))}
        aria-label={say("compare_head", { name })} test={`head-${name}`} onPick={(n) => { const { layer, head } = headOf(info, Number(n)); onHead(layer, head); }} />}
    </span>
  );
}

/** The words that B has in place of A's, where it is one; else letters. */
function sideNames(b: Slot): [string, string] {
  const { alone, rows, toA } = joint.value!;
  const differing = rows.map(({ differs }, n) => (differs ? toA.rows[n] : -1)).filter((place) => place >= 0);
  return differing.length !== 1 || alone.some(Boolean) ? ["A", "B"] : [shown.value!.rows[differing[0]].text, b.shown.rows[partner("rows", differing[0])].text];
}

/** How many words are told that a change goes to; and how many stand in the ribbons of a long text. */
const TOLD = 3;
const STRONGEST = 16;
/** How many keys stand beside the matrix, and how many heads. */
const MOVING = 8;
const FEW = 6;

/** What a word looks at in A and in B. */
type Rows = [Float32Array | null, Float32Array | null];

/** The pinned cell before and after, and where the weight goes. */
function Headline({ rows: [x, y], names, a, b, gap }: { rows: Rows; names: [string, string]; a: Doc; b: Slot; gap: Picture | null }) {
  const words = shown.value!;
  const { columns, rows, toA, alone } = joint.value!;
  const [r, c] = [row.value, column.value];
  const [i, j] = [partner("rows", r), partner("columns", c)];
  const heads = [headLabel(a.info, at.value.n), headLabel(b.doc.info, b.n)];
  const way = x && y && j >= 0 && short(x[c!]) !== short(y[j]) ? Math.sign(x[c!] - y[j]) : 0;
  const told = way ? short : number;
  const here = toA.rows.indexOf(r ?? -1);
  const start = here * columns.length;
  const cells = (gap?.full ?? new Float32Array(0)).slice(start, start + columns.length).map((value) => way * value);
  const others = largestPlaces(cells, TOLD).filter((n) => cells[n] >= LEAST);
  const [token, text] = [(rows[here] ?? words.rows[r ?? -1])?.text, c === null ? "" : (columns[toA.columns.indexOf(c)] ?? words.columns[c]).text];
  return (
    <>
      <h1>{!token || !text ? say("ask_pin") : i < 0 || j < 0 ? say("compare_alone", { token: i < 0 ? token : text })
        : <>{tell("compare_says", { token: <bdi>{token}</bdi>, text: <bdi>{text}</bdi> }, { names: names.join(" → "), head: [...new Set(heads)].join(" → ") })} <b class={way > 0 ? "less" : way < 0 ? "more" : ""}>{x && y && `${told(x[c!])} → ${told(y[j])}`}</b></>}</h1>
      <p class="quiet">
        {others.length > 0 && tell("compare_instead", { list: others.map((n, at) => <>{at > 0 && ", "}<bdi>{cut(columns[n].text)}</bdi> <b class={way > 0 ? "more" : "less"}>{plus(way * cells[n])}</b></>) })} {alone.some(Boolean) && <span data-test="aligned">{say("compare_aligned", { n: count(rows.length), a: count(alone[0]), b: count(alone[1]) })}</span>}
        {b.n === proposed.value && b.doc === a && <span data-test="proposed">{say("compare_proposed", { head: heads[1], what: statisticName(pinnedCell.value ? "weight" : "entropy") })}</span>}
        {apart.value && <span data-test="apart">{say("compare_shapes")}</span>}
      </p>
    </>
  );
}

/**
 * Both texts, each word over the one that stands for it; ink and number: how much the word that is looked at looks there.
 * Of a long text, those that the pinned word looks at most.
 */
function Ribbons({ rows: [x, y], pinned: [one, other], names, b }: { rows: Rows; pinned: Rows; names: [string, string]; b: Slot }) {
  const words = shown.value!;
  const { columns: { a: left, b: right } } = pairs.value!;
  const self = isOne(words, doc.value!.info);
  const [texts, others] = [spelled(words.columns, doc.value!.info.keys), spelled(b.shown.columns, b.doc.info.keys)];
  const most = left.length <= TANGLE ? left.length : STRONGEST;
  const places = largestPlaces(Float32Array.from(left, (i, n) => Math.max(one?.[i] ?? 0, other?.[right[n]] ?? 0)), most).sort((m, n) => m - n);
  const word = (label: Label | undefined, text: string, value: number | undefined, place: number) => (
    <span class={`said-word${!label ? " gap" : isQuiet(label) ? " special" : ""}${self && place >= 0 && lookedRow.value === place ? " looking" : ""}${place >= 0 && lookedColumn.value === place ? " seen" : ""}`} title={label?.title} data-weight={value}>
      <Ink text={label ? text : "\u00a0"} value={value} most={1} />
    </span>
  );
  return (
    <div class="row duel-words"><p class="quiet small">{names.map((name, n) => <bdi key={n} title={fullName(n ? b.doc : doc.value!)}>{name}</bdi>)}</p>
      <div class="sentence small" role="listbox" tabIndex={0} aria-label={say(self ? "queries" : "keys")} dir={direction(words.columns)} {...pointed(self ? "row" : "column", words.columns)}>
        {places.map((n) => {
          const [i, j] = [left[n], right[n]];
          const differs = i < 0 || j < 0 || marked(words.columns[i]) !== marked(b.shown.columns[j]);
          return (
            <span key={n} class={differs ? "couple differs" : "couple"} role="option" aria-selected={i >= 0 && (self ? row : column).value === i} data-at={i < 0 ? undefined : i}>
              {word(words.columns[i], texts[i], x?.[i], i)}{word(b.shown.columns[j], others[j], y?.[j], i)}
            </span>
          );
        })}
      </div></div>
  );
}

/** What the word that is looked at looks at, in A and in B: the keys whose weight changes most. */
function Moves({ rows: [x, y], names, b }: { rows: Rows; names: [string, string]; b: Slot }) {
  const words = shown.value!;
  const { columns: { a: left, b: right } } = pairs.value!;
  const token = words.rows[lookedRow.value ?? -1]?.text;
  if (token === undefined || !x || !y) return null;
  const [before, after] = [left, right].map((places, side) => Float32Array.from(places, (place) => (place < 0 ? 0 : [x, y][side][place])));
  const order = largestPlaces(before.map((value, n) => Math.abs(after[n] - value)), MOVING).filter((n) => short(before[n]) !== short(after[n]));
  if (!order.length) return null;
  const most = Math.max(...before, ...after);
  const said = (place: number, value: number): string => (place < 0 ? "–" : short(value));
  return (
    <>
      <h2 class="row spread">{say("looks_at", { token })} <small>{names.join(" → ")}</small></h2>
      <ol class="ranked" data-test="moves">{order.map((n) => {
        const [i, j] = [left[n], right[n]];
        return (
          <KeyLine key={n} label={i < 0 ? b.shown.columns[j] : j < 0 ? words.columns[i] : joined(words.columns[i], b.shown.columns[j])} c={i} shares={[before[n] / most, after[n] / most]}>
            {said(i, before[n])} → <b class={after[n] > before[n] ? "more" : "less"}>{said(j, after[n])}</b>
          </KeyLine>
        );
      })}</ol>
    </>
  );
}

/** The heads whose weight moves most, and where this one stands. */
function MostMoved({ info }: { info: TraceInfo }) {
  const moved = table.value.change;
  if (!moved || apart.value) return null;
  const order = byNumber(moved, true).filter((n) => short(moved[n]) !== "0");
  if (!order.length) return null;
  const here = order.indexOf(at.value.n);
  return (
    <>
      <h2>{say("ask_change")}</h2>
      <ol class="ranked" data-test="most-moved">{order.filter((_, place) => place < FEW || place === here).map((n) => (
        <li key={n} class={n === at.value.n ? "chosen" : ""} value={order.indexOf(n) + 1} data-head={headLabel(info, n)} data-number={moved[n]} onClick={(event) => pick(event, n)}>
          <button class="plain">{headLabel(info, n)}</button><span class="bar"><Fill share={moved[n] / moved[order[0]]} /></span><b>{short(moved[n])}</b>
        </li>
      ))}</ol>
      <p class="quiet small">{say("unit_change")}</p>
    </>
  );
}

export function Compare() {
  const [a, b, both] = [doc.value!, slotB.value, joint.value];
  const want = { ...wanted.value!, normed: false };
  const wantB: Wanted | null = b && { ...b, minus: null, normed: false, mean: null };
  const duel = b && both;
  const minus: Wanted | null = duel ? { ...want, shown: { ...want.shown, view: both.a }, minus: { ...b, view: both.b } } : null;
  const gap = usePicture(minus);
  const rowsOf = (r: number | null): Rows => [useRow(want, r), useRow(wantB, partner("rows", r))];
  const [pinned, looked] = [rowsOf(row.value), rowsOf(lookedRow.value)];
  const [l, h] = [state.otherLayer.value, state.otherHead.value];
  const missing = l !== null && h !== null ? { l, h } : headName(a.info, at.value);
  // where no sink takes weight
  const sums = gap?.full && Math.abs(gap.full.reduce((sum, value) => sum + value, 0)) < 0.01 * gap.rows;
  const [one, other] = [looked[0]?.[lookedColumn.value ?? -1], looked[1]?.[partner("columns", lookedColumn.value)]];
  const names = duel ? sideNames(b) : ["A", "B"] as [string, string];
  const sides = (
    <div class="row tools">
      <Chooser name="A" holds={a} head={mean.value ? null : at.value.n} onText={lookAt}
        onHead={(l, h) => { state.several.value = state.NONE; state.layer.value = l; state.head.value = h; }} />
      <Sign says={say("compare_swap")} data-test="swap" disabled={!b} onClick={swap}>⇄</Sign>
      <Chooser name="B" holds={docB.value} head={b && b.n} onText={(index) => setB(index, state.otherLayer.value, state.otherHead.value)}
        onHead={(l, h) => setB(placeOfDoc(docB.value!), l, h)} />
      <label class="file button">{say("compare_open")}
        <input type="file" accept=".safetensors" onChange={(event) => {
          const file = event.currentTarget.files?.[0];
          if (file) void openFile(file);
        }} />
      </label>
    </div>
  );
  return (
    <>
      {duel && <section class="duel" aria-label={say("pane_compare")}>
        <Headline rows={pinned} names={names} a={a} b={b} gap={gap} />
        <Ribbons rows={looked} pinned={pinned} names={names} b={b} />
        {sides}
      </section>}
      <Centre pane="picture">
        {!b && <h1 class="unseen">{say("pane_compare")}</h1>}
        {!duel && sides}
        {!duel ? <p class="quiet hint">{docB.value ? say("compare_no_head", missing) : say("compare_hint")}</p> : (
          <div class="moved">
            <h2>{[...new Set([title(), say("layer_head", headName(b.doc.info, b))])].join(" → ")}, {names[1]} − {names[0]} <small>{[sums && say("compare_row"), numbersFrom.value > 0 && say("text_numbers", { n: short(LEAST) })].filter(Boolean).join(" · ")}</small></h2>
            <Matrix picture={gap} wanted={minus} rows={both.rows} columns={both.columns} name={`${names[1]} − ${names[0]}`} toA={both.toA} />
            <p class="row spread quiet small">
              <span data-test="three">{one !== undefined && other !== undefined && <>B {number(other)} − A {number(one)} = <b>{number(other - one)}</b></>}</span>
              {gap && <Legend picture={gap} />}
            </p>
          </div>
        )}
      </Centre>
      {duel && <aside class="panel moves" aria-label={say("ask_change")}>
        <Moves rows={looked} names={names} b={b} />
        <MostMoved info={a.info} />
      </aside>}
    </>
  );
}
