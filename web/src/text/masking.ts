// Which cells of a picture the model never looks at: their weight is not small, there is none.
import { sees } from "../trace/parts";
import type { TraceInfo } from "../trace/trace";
import type { Wanted } from "../drawing/pictures";
import type { Label } from "./shown";

type Masker = (row: Label, column: Label, weight: number) => boolean;

/** A function that says whether every token of a column is hidden from every token of a row, in every head of the picture; null where none is. */
export function maskOf({ doc: { info }, layer, mean }: Pick<Wanted, "layer" | "mean"> & { doc: { info: TraceInfo } }): Masker | null {
  const all = [...new Set(mean?.map(([member]) => member) ?? [layer])].map((member) => maskOfLayer(info, member));
  return all.every((masked) => masked !== null) ? (...cell) => all.every((masked) => masked(...cell)) : null;
}

function maskOfLayer(info: TraceInfo, layer: number): Masker | null {
  const rule = info.layers[layer];
  if (rule.biasHeads) return (_, __, weight) => weight === 0; // the bias stays with the worker; a hidden key has no weight at all
  if (!rule.causal && !rule.window && !rule.keys) return null;
  const shift = info.keys.tokens.length - info.queries.tokens.length;
  return (row, column) => row.tokens.every((i) => column.tokens.every((j) => !sees(rule, i + shift, j)));
}
