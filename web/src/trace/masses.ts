// The weight between two sets of tokens in every head of a layer, from the vectors of these tokens alone.
import { allowed, shiftOf } from "./cells";
import type { HeadArrays } from "./head";
import { addTerms } from "./terms";

export interface Sets {
  queries: ArrayLike<number>;
  keys: ArrayLike<number>;
  /** The keys that rows are renormalised over; null where they are not. */
  kept: ArrayLike<number> | null;
  normed: boolean;
}

/** A head's arrays with only some rows of q and k; the rest of the record as it is. */
export interface Some {
  head: HeadArrays;
  /** (queries, d) and (keys, d), in the order of the sets. */
  q: Float32Array;
  k: Float32Array;
  /** (kept, d) where rows are renormalised. */
  kept: Float32Array | null;
}

/** Mean over the queries of the summed weights on the keys: 0 to 1, unless weighted with norms. */
export function massBetween({ head, q, k, kept }: Some, sets: Sets): number {
  const norms = sets.normed ? head.valueNorms : null;
  let total = 0;
  for (let r = 0; r < sets.queries.length; r++) {
    const i = sets.queries[r];
    const shift = shiftOf(head, i);
    const weigh = (vectors: Float32Array, keys: ArrayLike<number>, lengths: Float32Array | null): number => {
      let sum = 0;
      for (let c = 0; c < keys.length; c++) sum += weight(head, q, r, i, vectors, c, keys[c], shift) * (lengths ? lengths[keys[c]] : 1);
      return sum;
    };
    const share = kept && sets.kept ? weigh(kept, sets.kept, null) : 1;
    if (share !== 0) total += weigh(k, sets.keys, norms) / share;
  }
  return total / sets.queries.length;
}

/** One weight from the row's own log-sum-exp; `r` and `c` are the vectors' places in q and k. */
export function weight(head: HeadArrays, q: Float32Array, r: number, i: number, k: Float32Array, c: number, j: number, shift: number): number {
  const { d, rule, bias, keys, queries, lse } = head;
  if (!lse || lse[i] === -Infinity || !allowed(head, i + keys - queries, j)) return 0;
  let dot = 0;
  for (let n = 0; n < d; n++) dot += q[r * d + n] * k[c * d + n];
  const sum = [dot * rule.scale];
  addTerms(head, i, j, j + 1, sum, q, r * d, k, c * d);
  const score = bias ? Math.fround(Math.fround(sum[0]) + bias[i * keys + j]) - shift : sum[0];
  return Math.exp(score - lse[i]);
}
