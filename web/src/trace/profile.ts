// One number for each word of a text: what some queries look at, or how much each query looks at some keys.
import { scoreRow, shiftOf, size, viewRows, weightRow, type Heads, type View } from "./cells";
import type { HeadArrays } from "./head";
import { weight } from "./masses";

/** (columns,): the mean of these rows of the picture. */
export function looksAt(heads: Heads, view: View, rows: ArrayLike<number>, normed: boolean): Float32Array {
  const out = new Float32Array(size(view.columns));
  for (let n = 0; n < rows.length; n++) {
    const row = viewRows(heads, view, rows[n], rows[n] + 1, 0, out.length, normed);
    for (let c = 0; c < out.length; c++) out[c] += row[c] / rows.length;
  }
  return out;
}

const sums = new WeakMap<Float32Array, Float64Array>();

/** The head with its rows' log-sum-exps, computed once where its trace came without. */
function summed(head: HeadArrays): HeadArrays {
  if (head.lse) return head;
  const { q, queries, keys } = head as HeadArrays;
  let lse = sums.get(q);
  if (!lse) {
    const row = new Float32Array(keys);
    lse = Float64Array.from({ length: queries }, (_, i) => {
      scoreRow(head, i, 0, keys, row);
      const highest = row.reduce((most, score) => (score > most || Number.isNaN(score) ? score : most), -Infinity);
      if (highest === -Infinity) return highest;
      const sunk = head.terms?.sink == null ? 0 : Math.exp(head.terms.sink - highest);
      return highest + Math.log(row.reduce((total, score) => total + Math.exp(score - highest), sunk));
    });
    sums.set(q, lse);
  }
  return Object.create(head, { lse: { value: lse } }) as HeadArrays;
}

/** Below this share of kept weight a row's sum is computed over the kept keys, not as the rest of the hidden ones. */
const LITTLE = 0.05;

/** A function that gives the share of query i's weight that the view's columns hold. */
function keptShare(head: HeadArrays, view: View): (i: number) => number {
  const kept = new Uint8Array(head.keys);
  for (const j of view.columns.members) kept[j] = 1;
  const hidden = Array.from(kept.keys()).filter((j) => !kept[j]);
  const row = new Float32Array(head.keys);
  return (i) => {
    const shift = shiftOf(head, i);
    // a sink takes a share that is neither kept nor hidden
    if (head.terms?.sink == null) {
      const rest = hidden.reduce((sum, j) => sum - weight(head, head.q, i, i, head.k, j, j, shift), 1);
      if (rest > LITTLE) return rest;
    }
    weightRow(head, i, row);
    return view.columns.members.reduce((sum, j) => sum + row[j], 0);
  };
}

/** (rows,): the sum of each row of the picture over these columns, from log-sum-exps. */
export function lookedAtBy(heads: Heads, view: View, columns: ArrayLike<number>, normed: boolean): Float32Array {
  const { rows, columns: all } = view;
  const out = new Float32Array(size(rows));
  const keys = Array.from(columns).flatMap((c) => Array.from(all.members.subarray(all.starts[c], all.starts[c + 1])));
  const every = [heads].flat().map(summed);
  for (const head of every) {
    const norms = normed ? head.valueNorms : null;
    const share = view.renormalise ? keptShare(head, view) : null;
    for (let r = 0; r < out.length; r++) {
      const [first, last] = [rows.starts[r], rows.starts[r + 1]];
      for (let piece = first; piece < last; piece++) {
        const i = rows.members[piece];
        const shift = shiftOf(head, i);
        const sum = keys.reduce((total, j) => total + weight(head, head.q, i, i, head.k, j, j, shift) * (norms ? norms[j] : 1), 0);
        if (sum !== 0) out[r] += sum / (share ? share(i) : 1) / (last - first) / every.length;
      }
    }
  }
  return out;
}
