// What models add to scale * q . k, computed for one row or one cell: as in headscope.attention.terms.
import type { HeadArrays } from "./head";

export const TABLES = ["by_distance", "by_key", "relative_keys", "relative_queries"] as const;
export type TermName = (typeof TABLES)[number];

function dot(a: Float32Array, at: number, b: Float32Array, from: number, d: number): number {
  let sum = 0;
  for (let n = 0; n < d; n++) sum += a[at + n] * b[from + n];
  return sum;
}

export const capped = (score: number, cap: number | null): number => (cap === null ? score : cap * Math.tanh(score / cap));

/**
 * Each term of one cell, in the order of TABLES. `q` and `k` hold the two vectors, from the places `at` and `from` on.
 */
export function termsOf(
  head: HeadArrays, i: number, j: number, q: Float32Array, at: number, k: Float32Array, from: number,
): { name: TermName; value: number }[] {
  const { terms, d, queries, rule } = head;
  if (!terms) return [];
  const bucket = terms.buckets ? terms.buckets[j - i + queries - 1] : 0;
  const lines: { name: TermName; value: number }[] = [];
  if (terms.byDistance) lines.push({ name: "by_distance", value: terms.byDistance[bucket] });
  if (terms.byKey) lines.push({ name: "by_key", value: terms.byKey[j] });
  if (terms.relativeKeys) lines.push({ name: "relative_keys", value: rule.scale * dot(q, at, terms.relativeKeys, bucket * d, d) });
  if (terms.relativeQueries) lines.push({ name: "relative_queries", value: rule.scale * dot(k, from, terms.relativeQueries, bucket * d, d) });
  return lines;
}

/** One cell's score, from its scaled dot product: with the terms and the cap. */
export function withTerms(
  head: HeadArrays, score: number, i: number, j: number, q: Float32Array, at: number, k: Float32Array, from: number,
): number {
  if (!head.terms) return score;
  return capped(termsOf(head, i, j, q, at, k, from).reduce((sum, { value }) => sum + value, score), head.terms.cap);
}

/** Add the terms of query i to its scaled dot products with keys [from, to), in out[0 .. to - from), and cap the sums. */
export function addTerms(head: HeadArrays, i: number, from: number, to: number, out: Float32Array): void {
  const { terms, q, k, d, queries, rule: { scale } } = head;
  if (!terms) return;
  const { buckets, byDistance, byKey, relativeKeys, relativeQueries, cap } = terms;
  // The query's product with each bucket's vector, for the buckets that occur: far distances share one.
  const ofBucket = relativeKeys && buckets ? new Float32Array(relativeKeys.length / d).fill(NaN) : null;
  for (let j = from; j < to; j++) {
    let sum = out[j - from];
    if (buckets) {
      const bucket = buckets[j - i + queries - 1];
      if (byDistance) sum += byDistance[bucket];
      if (ofBucket && relativeKeys) {
        if (Number.isNaN(ofBucket[bucket])) ofBucket[bucket] = scale * dot(q, i * d, relativeKeys, bucket * d, d);
        sum += ofBucket[bucket];
      }
      if (relativeQueries) sum += scale * dot(k, j * d, relativeQueries, bucket * d, d);
    }
    if (byKey) sum += byKey[j];
    out[j - from] = capped(sum, cap);
  }
}
