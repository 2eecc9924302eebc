// One number for each word of a text: what some queries look at, or how much each query looks at some keys.
import { scoreRow, size, viewRows, type Heads, type View } from "./cells";
import type { HeadArrays } from "./head";
import { massesBetween } from "./masses";

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
  const { q, queries, keys } = head;
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

/** (places, d). */
function rowsAt(all: Float32Array, d: number, places: ArrayLike<number>): Float32Array {
  const out = new Float32Array(places.length * d);
  for (let n = 0; n < places.length; n++) out.set(all.subarray(places[n] * d, (places[n] + 1) * d), n * d);
  return out;
}

/** (rows,): the sum of each row of the picture over these columns, from log-sum-exps. */
export function lookedAtBy(heads: Heads, { rows, columns: all, renormalise }: View, columns: ArrayLike<number>, normed: boolean): Float32Array {
  const out = new Float32Array(size(rows));
  const keys = Array.from(columns).flatMap((c) => Array.from(all.members.subarray(all.starts[c], all.starts[c + 1])));
  const every = [heads].flat().map(summed);
  for (const head of every) {
    const some = { head, q: rowsAt(head.q, head.d, rows.members), keysAt: (places: ArrayLike<number>) => rowsAt(head.k, head.d, places) };
    const masses = massesBetween(some, { queries: rows.members, keys, kept: renormalise ? all.members : null, normed });
    for (let r = 0; r < out.length; r++) {
      const own = masses.slice(rows.starts[r], rows.starts[r + 1]);
      for (const mass of own) out[r] += mass / own.length / every.length;
    }
  }
  return out;
}
