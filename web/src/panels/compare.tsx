// Two traces side by side, their signed difference, and the heads that changed most.
import { useEffect } from "preact/hooks";
import { useSignal, type Signal } from "@preact/signals";
import { count, number, say } from "../words";
import * as state from "../state";
import { apart, placeOf, separated } from "../comparing";
import { picture, wanted, wantedKey, type Picture, type Wanted } from "../pictures";
import { at, doc, docs, failure, headLabel, headName, openTrace, otherDoc, otherShown, placeOfDoc, shown, type Doc } from "../store";
import { changed } from "../statistics";
import { everyRow } from "../trace/measures";
import { Legend } from "./legend";
import { Matrix } from "./matrix";

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

export function Chooser() {
  return (
    <span class="row">
      <label>{say("compare_with")} <select value={state.other.value ?? ""} data-test="compare-with"
        onChange={(event) => { state.other.value = event.currentTarget.value === "" ? null : Number(event.currentTarget.value); }}>
        <option value="">{say("compare_none")}</option>
        {docs.value.map((tab, index) => tab === doc.value ? null : <option key={tab.id} value={index}>{tab.name}</option>)}
      </select></label>
      <label class="file button">{say("compare_open")}
        <input type="file" accept=".safetensors" data-test="compare-file" onChange={(event) => {
          const file = event.currentTarget.files?.[0];
          if (file) void openFile(file);
        }} />
      </label>
    </span>
  );
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

export function Compare() {
  const [a, b] = [doc.value, otherDoc.value];
  const [labelsA, labelsB] = [shown.value, otherShown.value];
  const { layer, head } = at.value;
  const name = a && headName(a.info, at.value);
  const there = b && name && placeOf(b.info, name.l, name.h);
  const second: Wanted | null = b && labelsB && there ? { doc: b, minus: null, shown: labelsB, ...there, normed: false } : null;
  const why = separated.value;
  const minus: Wanted | null = a && b && labelsA && there && !why ? { doc: a, minus: b, shown: labelsA, layer, head, normed: false } : null;
  const left = usePicture(wanted.value && { ...wanted.value, normed: false }, "compare a");
  const right = usePicture(second, "compare b");
  const difference = usePicture(minus, "compare difference");
  if (!a || !labelsA || !name) return null;
  const heading = (name: string, trace: Doc): preact.JSX.Element => <h3 title={`${trace.name} ${trace.info.name}`}><b>{name}</b> <bdi>{trace.name}</bdi> <span class="quiet">{trace.info.name}</span></h3>;
  return (
    <main class="centre" id="head">
      <section class="panel picture">
        <div class="row tools">
          <h1>{say("layer_head", name)}</h1>
          <Chooser />
        </div>
        {!b || !labelsB ? <p class="quiet hint">{say("compare_hint")}</p> : (
          <div class={why || !there ? "three two" : "three"}>
            <div>{heading("A", a)}<Matrix picture={left.value} wanted={wanted.value} rows={labelsA.rows} columns={labelsA.columns} linked name="A" />{left.value && <Legend picture={left.value} />}</div>
            <div data-test="second">{heading("B", b)}{second
              ? <><Matrix picture={right.value} wanted={second} rows={labelsB.rows} columns={labelsB.columns} linked={!why} name="B" />{right.value && <Legend picture={right.value} />}</>
              : <p class="quiet hint">{say("compare_no_head", name)}</p>}</div>
            <div data-test="difference"><h3>{say("compare_difference")}</h3>
              {minus ? <><Matrix picture={difference.value} wanted={minus} rows={labelsA.rows} columns={labelsA.columns} linked name={say("compare_difference")} />{difference.value && <Legend picture={difference.value} digits={3} />}<Cells a={left.value} b={right.value} difference={difference.value} /></>
                : <p class="quiet hint">{why ? say(why.word, { a: why.a, b: why.b }) : say("compare_no_head", name)}</p>}
            </div>
          </div>
        )}
      </section>
      {b && <Changed a={a} b={b} />}
    </main>
  );
}

/** The three numbers of the hovered or pinned cell. */
function Cells({ a, b, difference }: { a: Picture | null; b: Picture | null; difference: Picture | null }) {
  const [r, c] = [state.hoverRow.value, state.hoverColumn.value];
  if (r === null || c === null || !a?.full || !b?.full || !difference?.full) return <p class="small">&nbsp;</p>;
  const at = r * a.columns + c;
  return <p class="small" data-test="three">A {number(a.full[at], 4)} − B {number(b.full[at], 4)} = {number(difference.full[at], 4)}</p>;
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
      {!why && <p class="quiet small">{say("compare_rank_note")}{every > 1 ? ` · ${say("every_row", { n: every })}` : ""}</p>}
    </section>
  );
}
