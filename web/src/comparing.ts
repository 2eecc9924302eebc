// Slot B, the alignment of its tokens with A's, and whether all heads of both can be compared.
import { batch, computed, effect } from "@preact/signals";
import { align } from "./align";
import * as state from "./state";
import { at, doc, docB, docs, headName, otherDoc, otherShown, placeOfDoc, shown, type Doc } from "./store";
import { say } from "./words";
import { marked, type Label, type Shown } from "./shown";
import type { Aligned, Pairs } from "./trace/difference";
import type { TraceInfo } from "./trace/trace";

/** The reason why the heads of two traces can't be ranked by change; null if they can. */
export type Apart = { word: "compare_shapes"; a: string; b: string } | null;

const same = (a: unknown, b: unknown): boolean => JSON.stringify(a) === JSON.stringify(b);

export function apart(a: TraceInfo, b: TraceInfo): Apart {
  if (same(a.layerNumbers, b.layerNumbers) && same(a.headNumbers, b.headNumbers)) return null;
  return { word: "compare_shapes", a: `${a.layers.length} × ${a.heads}`, b: `${b.layers.length} × ${b.heads}` };
}

/** The index of the head with these numbers in another trace; null if it has none. */
export function placeOf(info: TraceInfo, layerNumber: number, headNumber: number): { layer: number; head: number } | null {
  const layer = info.layerNumbers.indexOf(layerNumber);
  const head = layer < 0 ? -1 : info.headNumbers[layer].indexOf(headNumber);
  return head < 0 ? null : { layer, head };
}

export interface Slot {
  doc: Doc;
  shown: Shown;
  layer: number;
  head: number;
}

/** What B holds; null where there is no second text, or where it lacks the head. */
export const slotB = computed<Slot | null>(() => {
  const [a, b, words] = [doc.value, docB.value, otherShown.value];
  if (!a || !b || !words) return null;
  const { layerNumbers, headNumbers } = b.info;
  const [layer, head] = [state.otherLayer.value, state.otherHead.value];
  if (layer !== null && head !== null) return headNumbers[layer]?.[head] === undefined ? null : { doc: b, shown: words, layer, head };
  const name = headName(a.info, at.value);
  const place = layerNumbers.length ? placeOf(b.info, name.l, name.h) : null;
  return place && { doc: b, shown: words, ...place };
});

/** The text that B's head was chosen in. */
let chosenIn: number | null | undefined;

/** Another text in B is looked at with A's head, until one is chosen there. */
export function followSlots(): void {
  effect(() => {
    const other = state.other.value;
    if (chosenIn !== undefined && other !== chosenIn) state.otherLayer.value = state.otherHead.value = null;
    chosenIn = other;
  });
}

/** Put a head of a text into slot B. */
export function setB(trace: number, layer: number | null, head: number | null): void {
  batch(() => {
    chosenIn = trace;
    state.other.value = trace;
    state.otherLayer.value = layer;
    state.otherHead.value = head;
  });
}

/** Shift-click: a head of this text, or of B's text where that is on the screen. */
export function holdAgainst(n: number): void {
  const { info } = doc.value!;
  const beside = state.pane.value === "compare" && docB.value ? docB.value : doc.value!;
  const { l, h } = headName(info, { layer: Math.floor(n / info.heads), head: n % info.heads });
  const place = placeOf(beside.info, l, h);
  if (!place) {
    state.status.value = say("compare_no_head", { l, h });
    return;
  }
  setB(placeOfDoc(beside), place.layer, place.head);
  state.pane.value = "compare";
}

/** A and B change places. */
export function swap(): void {
  const b = slotB.value;
  if (!b) return;
  const { layer, head } = at.value;
  const old = placeOfDoc(doc.value!);
  batch(() => {
    state.trace.value = placeOfDoc(b.doc);
    state.layer.value = b.layer;
    state.head.value = b.head;
    setB(old, layer, head);
    if (b.doc !== docs.value[old]) state.query.value = state.key.value = null;
  });
}

const texts = (labels: Label[]): string[] => labels.map(marked);

/** The alignment of what is on the screen of both. */
export const pairs = computed<Pairs | null>(() => {
  const [a, b] = [shown.value, otherShown.value];
  return a && b && { rows: align(texts(a.rows), texts(b.rows)), columns: align(texts(a.columns), texts(b.columns)) };
});

/** The alignment of all tokens of both texts, for numbers about whole heads. */
export const tokenPairs = computed<Pairs | null>(() => {
  const [a, b] = [doc.value?.info, otherDoc.value?.info];
  return a && b ? { rows: align(a.queries.tokens, b.queries.tokens), columns: align(a.keys.tokens, b.keys.tokens) } : null;
});

/** Labels of aligned tokens: where they differ, both; where a side has none, a dash. */
export const alignedLabels = (a: Label[], b: Label[], { a: left, b: right }: Aligned): Label[] =>
  Array.from(left, (i, n) => {
    const [one, other] = [a[i], b[right[n]]];
    if (one && other && marked(one) === marked(other)) return one;
    return {
      ...(one ?? other), text: `${one?.text ?? "–"}/${other?.text ?? "–"}`, title: `${one?.title ?? "–"} / ${other?.title ?? "–"}`,
      continues: false, repeats: null, differs: true, gap: !one || !other,
    };
  });
