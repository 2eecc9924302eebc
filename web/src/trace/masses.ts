// The weight between two sets of tokens in every head of a layer, from the vectors of these tokens alone.
import { allowed, shiftOf } from "./cells";
import type { HeadArrays } from "./head";
import { addTerms, dot } from "./terms";

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
  /** (queries, d), in the order of the set. */
  q: Float32Array;
  /** (places, d) of k. */
  keysAt(places: ArrayLike<number>): Float32Array;
}

/** Below this share of kept weight a row's sum is computed over the kept keys, not as the rest of the hidden ones. */
const LITTLE = 0.05;

/** Of each query the summed weights on the keys: 0 to 1, unless weighted with norms. */
export function massesBetween({ head, q, keysAt }: Some, { queries, keys, kept, normed }: Sets): number[] {
  const on = (places: ArrayLike<number>, norms: Float32Array | null = null) => {
    const vectors = keysAt(places);
    return (r: number): number => {
      const [i, shift] = [queries[r], shiftOf(head, queries[r])];
      let sum = 0;
      for (let c = 0; c < places.length; c++) sum += weight(head, q, r, i, vectors, c, places[c], shift) * (norms ? norms[places[c]] : 1);
      return sum;
    };
  };
  const wanted = on(keys, normed ? head.valueNorms : null);
  if (!kept) return Array.from(queries, (_, r) => wanted(r));
  const has = new Set(Array.from(kept));
  const hidden = on(Array.from({ length: head.keys }, (_, j) => j).filter((j) => !has.has(j)));
  let all: typeof hidden | undefined;
  return Array.from(queries, (_, r) => {
    // a sink takes a share that is neither kept nor hidden
    const rest = head.terms?.sink == null ? 1 - hidden(r) : 0;
    const share = rest > LITTLE ? rest : (all ??= on(kept))(r);
    return share && wanted(r) / share;
  });
}

/** The mean of these. */
export const massBetween = (some: Some, sets: Sets): number => massesBetween(some, sets).reduce((sum, mass) => sum + mass / sets.queries.length, 0);

/** One weight from the row's own log-sum-exp; `r` and `c` are the vectors' places in q and k. */
function weight(head: HeadArrays, q: Float32Array, r: number, i: number, k: Float32Array, c: number, j: number, shift: number): number {
  const { d, rule, bias, keys, queries, lse } = head;
  if (!lse || lse[i] === -Infinity || !allowed(head, i + keys - queries, j)) return 0;
  const sum = [dot(q, r * d, k, c * d, d) * rule.scale];
  addTerms(head, i, j, j + 1, sum, q, r * d, k, c * d);
  const score = bias ? Math.fround(Math.fround(sum[0]) + bias[i * keys + j]) - shift : sum[0];
  return Math.exp(score - lse[i]);
}
