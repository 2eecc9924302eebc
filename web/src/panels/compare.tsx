// A beside B and B - A, their tokens aligned: a text or run, a layer and a head in each. Below, the heads that changed most.
import { useEffect } from "preact/hooks";
import { useSignal, type Signal } from "@preact/signals";
import { count, number, say } from "../words";
import * as state from "../state";
import { alignedLabels, apart, pairs, setB, slotB, swap } from "../comparing";
import { distinct, fullName, shortNames } from "../naming";
import { mean, title } from "../several";
import { drawnOf, picture, wanted, wantedKey, type Picture, type Wanted } from "../pictures";
import { at, doc, docB, docs, failure, headLabel, headName, lookAt, lookedColumn, lookedRow, openTrace, otherDoc, placeOfDoc, shown, type Doc } from "../store";
import { changed } from "../statistics";
import { engine } from "../trace/engine";
import { everyRow } from "../trace/parts";
import { largestPlaces } from "../trace/strongest";
import { Fill } from "./bar";
import { Legend } from "./legend";
import { LEAST, Matrix, numbersFrom } from "./matrix";
import { Sign } from "./sign";
import { short } from "./slots";
import { placed, type Label } from "../shown";
import type { Aligned } from "../trace/difference";

function usePicture(want: Wanted | null, lane: string): Signal<Picture | null> {
  const result = useSignal<Picture | null>(null);
  const key = want ? wantedKey(want) : "";
  useEffect(() => {
    let alive = true;
    if (!want) result.value = null;
    else picture(want, lane, () => { if (!alive) throw new Error("left"); }).then((answer) => { if (alive) result.value = answer; }, () => undefined);
    return () => { alive = false; };
  }, [key]);
  return result;
}

/** Row r of a picture, requested where the picture is pooled. */
function useRow(want: Wanted | null, drawn: Picture | null, r: number | null, lane: string): Float32Array | null {
  const far = useSignal<{ key: string; data: Float32Array } | null>(null);
  const key = want && r !== null && drawn && !drawn.full ? `${wantedKey(want)} ${r}` : "";
  useEffect(() => {
    if (!key) return;
    engine.ask("rows", { ...drawnOf(want!), view: want!.shown.view, from: r!, to: r! + 1, normed: false }, lane)
      .then((data) => { far.value = { key, data }; }, () => undefined);
  }, [key]);
  if (!want || !drawn || r === null || r < 0) return null;
  if (drawn.full) return drawn.key === wantedKey(want) ? drawn.full.subarray(r * drawn.columns, (r + 1) * drawn.columns) : null;
  return far.value?.key === key ? far.value.data : null;
}

export async function openFile(file: File): Promise<void> {
  try {
    const found = await openTrace({ bytes: await file.arrayBuffer() }, null);
    failure.value = null;
    state.other.value = placeOfDoc(found);
    state.pane.value = "compare";
  } catch (error) {
    failure.value = say("file_refused", { why: `${file.name}: ${error instanceof Error ? error.message : String(error)}` });
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
      <select value={holds ? placeOfDoc(holds) : ""} aria-label={say("compare_text", { name })} title={holds ? fullName(holds) : ""} data-test={name === "A" ? "compare-a" : "compare-with"}
        onChange={(event) => { if (event.currentTarget.value !== "") onText(Number(event.currentTarget.value)); }}>
        {!holds && <option value="">{say("compare_none")}</option>}
        {docs.value.map((tab, index) => <option key={tab.id} value={index}>{short[index]}</option>)}
      </select>
      {info && <select value={head ?? ""} aria-label={say("compare_head", { name })} data-test={`head-${name}`}
        onChange={(event) => { const n = Number(event.currentTarget.value); onHead(Math.floor(n / info.heads), n % info.heads); }}>
        {head === null && <option value="">–</option>}
        {info.layers.flatMap((_, l) => Array.from({ length: info.heads }, (_, h) => <option key={`${l}.${h}`} value={l * info.heads + h}>{headLabel(info, l, h)}</option>))}
      </select>}
    </span>
  );
}

export function Compare() {
  const [a, b, labelsA] = [doc.value, slotB.value, shown.value];
  const aligned = docB.value && labelsA ? pairs.value : null;
  const want = wanted.value && { ...wanted.value, normed: false };
  const wantB: Wanted | null = b && { ...b, minus: null, normed: false, mean: null };
  const minus: Wanted | null = want && b && aligned ? { ...want, minus: { ...b, pairs: aligned } } : null;
  const left = usePicture(want, "compare a").value;
  const right = usePicture(wantB, "compare b").value;
  const gap = usePicture(minus, "compare difference").value;
  if (!a || !labelsA || !want) return null;
  const { layer, head } = at.value;
  const [nameA, nameB] = docB.value && docB.value !== a ? distinct([fullName(a), fullName(docB.value)]) : ["", ""];
  const heading = (name: string, text: string, called: string, trace: Doc) => (
    <h2 title={`${text} ${called}\n${fullName(trace)}`}><b>{name}</b> {text && <bdi>{text}</bdi>} <span class="quiet">{called}</span></h2>
  );
  const rows = aligned && b ? alignedLabels(labelsA.rows, b.shown.rows, aligned.rows) : [];
  const columns = aligned && b ? alignedLabels(labelsA.columns, b.shown.columns, aligned.columns) : [];
  const [l, h] = [state.otherLayer.value, state.otherHead.value];
  const missing = l !== null && h !== null ? { l, h } : headName(a.info, at.value);
  return (
    <div class="centre" id="head">
      <section class="panel picture">
        <h1 class="unseen">{say("pane_compare")}</h1>
        <div class="row tools">
          <Chooser name="A" holds={a} head={mean.value ? null : layer * a.info.heads + head} onText={lookAt}
            onHead={(l, h) => { state.several.value = state.NONE; state.layer.value = l; state.head.value = h; }} />
          <Sign says={say("compare_swap")} data-test="swap" disabled={!b} onClick={swap}>⇄</Sign>
          <Chooser name="B" holds={docB.value} head={b && b.layer * b.doc.info.heads + b.head} onText={(index) => setB(index, state.otherLayer.value, state.otherHead.value)}
            onHead={(l, h) => setB(placeOfDoc(docB.value!), l, h)} />
          <label class="file button">{say("compare_open")}
            <input type="file" accept=".safetensors" data-test="compare-file" onChange={(event) => {
              const file = event.currentTarget.files?.[0];
              if (file) void openFile(file);
            }} />
          </label>
        </div>
        {!b || !aligned || !wantB ? <p class="quiet hint">{docB.value ? say("compare_no_head", missing) : say("compare_hint")}</p> : (
          <>
            <div class="duel">
              <div class="large" data-test="difference">
                <h2 title={alignment(aligned.rows, rows)}>B − A <span class="quiet" data-test="aligned">{alignment(aligned.rows, rows)}</span></h2>
                <Matrix picture={gap} wanted={minus} rows={rows} columns={columns} linked name="B − A" toA={{ rows: aligned.rows.a, columns: aligned.columns.a }} />
                {gap && <Legend picture={gap} />}
              </div>
              <div data-test="first">{heading("A", nameA, title(), a)}
                <Matrix picture={left} wanted={want} rows={labelsA.rows} columns={labelsA.columns} linked bare name="A" />{left && <Legend picture={left} />}</div>
              <div data-test="second">{heading("B", nameB, say("layer_head", headName(b.doc.info, b)), b.doc)}
                <Matrix picture={right} wanted={wantB} rows={b.shown.rows} columns={b.shown.columns} linked bare name="B" toA={{ rows: backwards(aligned.rows), columns: backwards(aligned.columns) }} />{right && <Legend picture={right} />}</div>
            </div>
            <Pairs want={want} wantB={wantB} left={left} right={right} columns={columns} />
          </>
        )}
      </section>
      {otherDoc.value && <Changed a={a} b={otherDoc.value} />}
    </div>
  );
}

/** A's place at each of B's. */
function backwards({ a, b }: Aligned): Int32Array {
  const out = new Int32Array(b.reduce((most, j) => Math.max(most, j + 1), 0)).fill(-1);
  b.forEach((j, n) => { if (j >= 0) out[j] = a[n]; });
  return out;
}

function alignment({ a, b }: Aligned, labels: Label[]): string {
  const both = a.reduce((sum, i, n) => sum + Number(i >= 0 && b[n] >= 0), 0);
  const differ = labels.filter(({ differs, gap }) => differs && !gap).length;
  return `${say("compare_aligned", { n: count(both), all: count(a.length), differ: count(differ) })}${numbersFrom.value > 0 ? ` · ${say("text_numbers", { n: LEAST })}` : ""}`;
}

/** Keys with a pair of bars. */
const BARS = 14;

/** Where the query that is looked at looks in A and in B, and the three numbers of the cell. */
function Pairs({ want, wantB, left, right, columns }: { want: Wanted; wantB: Wanted; left: Picture | null; right: Picture | null; columns: Label[] }) {
  const { rows, columns: keys } = pairs.value!;
  const r = lookedRow.value;
  const place = r === null ? -1 : rows.a.indexOf(r);
  const partner = place < 0 ? null : rows.b[place];
  const [x, y] = [useRow(want, left, r, "row a"), useRow(wantB, right, partner, "row b")];
  const valueA = (n: number): number | null => (x && keys.a[n] >= 0 ? x[keys.a[n]] : null);
  const valueB = (n: number): number | null => (y && keys.b[n] >= 0 ? y[keys.b[n]] : null);
  const order = x ? largestPlaces(columns.map((_, n) => Math.max(valueA(n) ?? 0, valueB(n) ?? 0)), BARS).sort((one, other) => one - other) : [];
  const c = lookedColumn.value === null ? -1 : keys.a.indexOf(lookedColumn.value);
  const [one, other] = [c < 0 ? null : valueA(c), c < 0 ? null : valueB(c)];
  const token = r === null ? "" : shown.value!.rows[r]?.text ?? "";
  return (
    <section class="pairs">
      <h2 class="row">{r === null ? <span class="quiet">{say("pick")}</span> : say("looks_at", { token })} <span class="key"><i /> A <i class="b" /> B</span>
        <span data-test="three">{one !== null && other !== null ? <>B {number(other)} − A {number(one)} = <b>{number(other - one)}</b></> : r !== null && partner !== null && partner < 0 ? say("compare_alone", { token }) : ""}</span></h2>
      <ol data-test="pairs">
        {order.map((n) => {
          const label = columns[n];
          const both = [valueA(n), valueB(n)];
          return (
            <li key={n} class={n === c ? "chosen" : ""} title={`${placed(label)} (${label.title}): A ${both[0] === null ? "–" : number(both[0])} · B ${both[1] === null ? "–" : number(both[1])}`} data-a={both[0]} data-b={both[1]}
              onPointerEnter={() => { state.hoverColumn.value = keys.a[n] < 0 ? null : keys.a[n]; }} onPointerLeave={() => { state.hoverColumn.value = null; }}
              onClick={() => { if (keys.a[n] >= 0) state.key.value = shown.value!.columns[keys.a[n]].tokens[0]; }}>
              <bdi class={label.differs ? "differs" : ""}>{placed(label)}</bdi>
              {both.map((value, side) => <><span class={side ? "bar b" : "bar"}><Fill share={value ?? 0} /></span><b>{value === null ? "–" : short(value)}</b></>)}
            </li>
          );
        })}
      </ol>
    </section>
  );
}

/** Heads ranked by how much their rows differ between two traces. */
export function Changed({ a, b }: { a: Doc; b: Doc }) {
  const why = apart(a.info, b.info);
  const ranked = why ? null : changed.value;
  const numbers = ranked?.numbers ?? new Float32Array(0);
  const order = Array.from(numbers.keys()).filter((n) => numbers[n] >= 0).sort((x, y) => numbers[y] - numbers[x] || x - y).slice(0, 12);
  const every = everyRow(a.info.queries.tokens.length);
  return (
    <section class="panel changed">
      <h2>{say("compare_ranked")} {ranked && ranked.done < numbers.length && <small class="quiet">{say("coming", { n: count(ranked.done), all: count(numbers.length) })}</small>}</h2>
      {why ? <p class="quiet">{say(why.word, { a: why.a, b: why.b })}</p> : <ol class="chips" data-test="changed" aria-busy={!ranked || ranked.done < numbers.length}>
        {order.map((n) => {
          const [l, h] = [Math.floor(n / a.info.heads), n % a.info.heads];
          return (
            <li key={n}><button class={l === at.value.layer && h === at.value.head ? "on" : ""} data-change={numbers[n]} onClick={() => { state.layer.value = l; state.head.value = h; }}>
              <b>{headLabel(a.info, l, h)}</b> {number(numbers[n])}
            </button></li>
          );
        })}
      </ol>}
      {!why && <p class="quiet small">{say("unit_change")}{every > 1 ? ` · ${say("every_row", { n: every })}` : ""}</p>}
    </section>
  );
}
