// What two traces have in common, and why they can't be subtracted.
import { computed } from "@preact/signals";
import { doc, otherDoc, otherShown, shown } from "./store";
import type { TraceInfo } from "./trace/trace";

/** Why two traces can't be subtracted cell by cell; null where they can. */
export type Apart = { word: "compare_lengths" | "compare_shapes" | "compare_filtered"; a: string; b: string } | null;

const same = (a: unknown, b: unknown): boolean => JSON.stringify(a) === JSON.stringify(b);
const rowsAndColumns = (info: TraceInfo): string =>
  info.keys === info.queries ? String(info.queries.tokens.length) : `${info.queries.tokens.length} x ${info.keys.tokens.length}`;

/** Heads of two traces are ranked by change where both have the same tokens' number, layers and heads. */
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
  const [mine, theirs] = [shown.value!, otherShown.value!];
  return same(mine.rows.map((one) => one.tokens), theirs.rows.map((one) => one.tokens)) &&
    same(mine.columns.map((one) => one.tokens), theirs.columns.map((one) => one.tokens))
    ? null
    : { word: "compare_filtered", a: `${mine.rows.length} x ${mine.columns.length}`, b: `${theirs.rows.length} x ${theirs.columns.length}` };
});

/** Where another trace holds the head with these numbers; null where it has none. */
export function placeOf(info: TraceInfo, layerNumber: number, headNumber: number): { layer: number; head: number } | null {
  const layer = info.layerNumbers.indexOf(layerNumber);
  const head = layer < 0 ? -1 : info.headNumbers[layer].indexOf(headNumber);
  return head < 0 ? null : { layer, head };
}
