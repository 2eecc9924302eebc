// Slot B, the alignment of its tokens with A's, and whether all heads of both can be compared.
import { batch, computed } from "@preact/signals";
import { align } from "../text/align";
import * as state from "./state";
import { proposed } from "../heads/pinned";
import { at, doc, docs, headName, headOf, placeOfDoc, setB, shown, shownOf, type Doc } from "./store";
import { say } from "../words";
import { marked, regroup, type Label, type Shown } from "../text/shown";
import type { View } from "../trace/cells";
import type { Aligned } from "../trace/difference";
import type { TraceInfo } from "../trace/trace";

/** The trace in slot B; where none was chosen the only other one, else A's for a proposed head. May be A's, to compare two heads of one text. */
export const docB = computed<Doc | null>(() => {
  if (state.other.value !== null) return docs.value[state.other.value] ?? null;
  if (docs.value.length === 2) return docs.value.find((other) => other !== doc.value)!;
  return proposed.value === null ? null : doc.value;
});
export const otherDoc = computed<Doc | null>(() => (docB.value === doc.value ? null : docB.value));
export const otherShown = computed(() => shownOf(docB.value?.info));

const heads = ({ layerNumbers, headNumbers }: TraceInfo): string => JSON.stringify([layerNumbers, headNumbers]);

/** True where the texts have other layers or heads: these can't be ranked by change. */
export const apart = computed(() => doc.value !== null && otherDoc.value !== null && heads(doc.value.info) !== heads(otherDoc.value.info));

/** The index of the head with these numbers in another trace; null if it has none. */
export function placeOf(info: TraceInfo, layerNumber: number, headNumber: number): { layer: number; head: number; n: number } | null {
  const layer = info.layerNumbers.indexOf(layerNumber);
  const head = layer < 0 ? -1 : info.headNumbers[layer].indexOf(headNumber);
  return head < 0 ? null : { layer, head, n: layer * info.heads + head };
}

export interface Slot {
  doc: Doc;
  shown: Shown;
  layer: number;
  head: number;
  n: number;
}

/** What B holds; null where there is no second text, or where it lacks the head. */
export const slotB = computed<Slot | null>(() => {
  const [a, b, words] = [doc.value, docB.value, otherShown.value];
  if (!a || !b || !words) return null;
  const { l, h } = headName(a.info, at.value);
  const [layer, head] = [state.otherLayer.value, state.otherHead.value];
  const n = b === a ? proposed.value : null;
  const place = layer === null || head === null ? (n === null ? placeOf(b.info, l, h) : { ...headOf(b.info, n), n }) : b.info.headNumbers[layer]?.[head] === undefined ? null : { layer, head, n: layer * b.info.heads + head };
  return place && { doc: b, shown: words, ...place };
});

/** Shift-click: a head of this text, or of B's text where that is on the screen. */
export function holdAgainst(n: number): void {
  const { info } = doc.value!;
  const beside = state.pane.value === "compare" && docB.value ? docB.value : doc.value!;
  const { l, h } = headName(info, headOf(info, n));
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

/** Of a run whose tokens were changed, each stands for the one in its place. */
const inPlace = ({ length }: unknown[]): Aligned => ({ a: Int32Array.from({ length }, (_, n) => n), b: Int32Array.from({ length }, (_, n) => n) });

/** Every word of both that is on the screen. */
export const pairs = computed<Record<"rows" | "columns", Aligned> | null>(() => {
  const [one, other, a, b] = [doc.value, docB.value, shown.value, otherShown.value];
  if (!one || !other || !a || !b) return null;
  const run = (one.of?.origin ?? one.id) === (other.of?.origin ?? other.id);
  const of = (side: "rows" | "columns"): Aligned => (run && a[side].length === b[side].length ? inPlace(a[side]) : align(a[side].map(marked), b[side].map(marked)));
  return { rows: of("rows"), columns: of("columns") };
});

/** B's row or column for one of A's; -1 where it has none. */
export function partner(side: "rows" | "columns", place: number | null): number {
  const both = pairs.value?.[side];
  return both && place !== null ? (both.b[both.a.indexOf(place)] ?? -1) : -1;
}

/** The words that stand in both texts, as rows and columns of each; at the end, together, a column of the words of A alone and one of B's. */
interface Joint {
  a: View;
  b: View;
  rows: Label[];
  columns: Label[];
  /** A's row and column at each; -1 for words together. */
  toA: Record<"rows" | "columns", Int32Array>;
  /** How many words stand only in A, and only in B. */
  alone: [number, number];
}

/** A label of what stands for the same: where they differ, both. */
export const joined = (one: Label, other: Label): Label =>
  marked(one) === marked(other) ? one : { ...one, text: `${one.text}/${other.text}`, title: `${one.title} / ${other.title}`, continues: false, repeats: null, differs: true };

export const joint = computed<Joint | null>(() => {
  const [a, b, all] = [shown.value, otherShown.value, pairs.value];
  if (!a || !b || !all) return null;
  const both = ({ a: left, b: right }: Aligned): [number, number][] => Array.from(left, (i, n): [number, number] => [i, right[n]]).filter(([i, j]) => i >= 0 && j >= 0);
  const [rows, columns] = [both(all.rows), both(all.columns)];
  const alone = [all.columns.a.filter((_, n) => all.columns.b[n] < 0), all.columns.b.filter((_, n) => all.columns.a[n] < 0)].map((places) => [...places]);
  const view = ({ view: old }: Shown, side: 0 | 1): View => ({
    rows: regroup(old.rows, rows.map((pair) => [pair[side]])),
    columns: regroup(old.columns, [...columns.map((pair) => [pair[side]]), ...alone.flatMap((places, n) => (places.length ? [n === side ? places : []] : []))]),
    renormalise: old.renormalise,
  });
  const only = alone.flatMap((places, n): Label[] => (!places.length ? [] : [{
    text: say("compare_only", { name: "AB"[n] }), title: places.map((place) => (n ? b : a).columns[place].text).join(" "),
    continues: false, special: true, segment: 0, tokens: [], repeats: null,
  }]));
  return {
    a: view(a, 0), b: view(b, 1),
    rows: rows.map(([i, j]) => joined(a.rows[i], b.rows[j])), columns: [...columns.map(([i, j]) => joined(a.columns[i], b.columns[j])), ...only],
    toA: { rows: Int32Array.from(rows, ([i]) => i), columns: Int32Array.from([...columns.map(([i]) => i), ...only.map(() => -1)]) },
    alone: [alone[0].length, alone[1].length],
  };
});

/** True where two texts stand beside each other: the grid then shows how they differ. */
export const isDuel = computed(() => state.pane.value === "compare" && otherDoc.value !== null && joint.value !== null && !apart.value);
/** What the grid is asked for. */
export const asked = computed(() => (!isDuel.value ? state.statistic.value : state.order.value === "place" ? "gap" : "change"));
