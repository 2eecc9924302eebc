// What models add to scale * q . k, computed for one row or one cell: as in headscope.attention.terms.
import { TABLES, type HeadArrays, type HeadTerms, type TermName } from "./head";

/** The product of `d` numbers of each array, from places on. */
export function dot(a: Float32Array, at: number, b: Float32Array, from: number, d: number): number {
  let sum = 0;
  for (let n = 0; n < d; n++) sum += a[at + n] * b[from + n];
  return sum;
}

export const capped = (score: number, cap: number | null): number => (cap === null ? score : cap * Math.tanh(score / cap));

/**
 * Add the terms of query i to its scaled dot products with keys [from, to), in out[0 .. to - from), and cap the sums. `q` has the query's
 * vector from `at` on, `k` those of the keys from `start` on.
 */
export function addTerms(
  { terms, q: queryRows, k: keyRows, d, queries, rule: { scale } }: HeadArrays, i: number, from: number, to: number, out: Float32Array | number[],
  q = queryRows, at = i * d, k = keyRows, start = from * d,
): void {
  if (!terms) return;
  const { buckets, by_distance, by_key, relative_keys, relative_queries, cap } = terms;
  // The query's product with each bucket's vector, for the buckets that occur: far distances share one.
  const ofBucket: number[] = [];
  for (let j = from; j < to; j++) {
    let sum = out[j - from];
    const bucket = buckets ? buckets[j - i + queries - 1] : 0;
    if (by_distance) sum += by_distance[bucket];
    if (relative_keys) sum += ofBucket[bucket] ??= scale * dot(q, at, relative_keys, bucket * d, d);
    if (relative_queries) sum += scale * dot(k, start + (j - from) * d, relative_queries, bucket * d, d);
    if (by_key) sum += by_key[j];
    out[j - from] = capped(sum, cap);
  }
}

/** Each term of one cell alone, in the order of TABLES. */
export const termsOf = (head: HeadArrays, i: number, j: number): { name: TermName; value: number }[] =>
  TABLES.filter((name) => head.terms?.[name]).map((name) => {
    const value = [0];
    const terms: HeadTerms = { buckets: head.terms!.buckets, [name]: head.terms![name], cap: null, sink: null };
    addTerms(Object.create(head, { terms: { value: terms } }) as HeadArrays, i, j, j + 1, value);
    return { name, value: value[0] };
  });
