// Comparability of two traces, and the reason if they can't be subtracted.
import { computed } from "@preact/signals";
import { doc, otherDoc, otherShown, shown } from "./store";
import type { TraceInfo } from "./trace/trace";

/** The reason why two traces can't be subtracted cell by cell; null if they can. */
export type Apart = { word: "compare_lengths" | "compare_shapes" | "compare_filtered"; a: string; b: string } | null;

const same = (a: unknown, b: unknown): boolean => JSON.stringify(a) === JSON.stringify(b);
const rowsAndColumns = (info: TraceInfo): string =>
  info.keys === info.queries ? String(info.queries.tokens.length) : `${info.queries.tokens.length} x ${info.keys.tokens.length}`;

/** True if heads can be ranked by change: both traces have the same number of tokens, layers and heads. */
export function apart(a: TraceInfo, b: TraceInfo): Apart {
  if (!same(a.layerNumbers, b.layerNumbers) || !same(a.headNumbers, b.headNumbers)) {
    return { word: "compare_shapes", a: `${a.layers.length} x ${a.heads}`, b: `${b.layers.length} x ${b.heads}` };
  }
  if (a.queries.tokens.length !== b.queries.tokens.length || a.keys.tokens.length !== b.keys.tokens.length) {
    return { word: "compare_lengths", a: rowsAndColumns(a), b: rowsAndColumns(b) };
  }
  return null;
}

export const separated = computed<Apart>(() => {
  const [a, b] = [doc.value?.info, otherDoc.value?.info];
  if (!a || !b) return null;
  const why = apart(a, b);
  if (why) return why;
  const [left, right] = [shown.value!, otherShown.value!];
  return same(left.rows.map((label) => label.tokens), right.rows.map((label) => label.tokens)) &&
    same(left.columns.map((label) => label.tokens), right.columns.map((label) => label.tokens))
    ? null
    : { word: "compare_filtered", a: `${left.rows.length} x ${left.columns.length}`, b: `${right.rows.length} x ${right.columns.length}` };
});

/** The index of the head with these numbers in another trace; null if it has none. */
export function placeOf(info: TraceInfo, layerNumber: number, headNumber: number): { layer: number; head: number } | null {
  const layer = info.layerNumbers.indexOf(layerNumber);
  const head = layer < 0 ? -1 : info.headNumbers[layer].indexOf(headNumber);
  return head < 0 ? null : { layer, head };
}
