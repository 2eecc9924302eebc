// One query meets one key: every number between q, k and the weight.
import { scoreRow, shiftOf, sunk, total, weightRow } from "./cells";
import type { HeadArrays, TermName } from "./head";
import { dot, termsOf } from "./terms";

/** Every step between one query and one key. */
export interface Chain {
  q: Float32Array;
  k: Float32Array;
  product: Float32Array;
  dot: number;
  scale: number;
  bias: number;
  /** What the model adds to the scaled product, term by term. */
  terms: { name: TermName; value: number }[];
  /** The soft cap that the sum goes through, or null. */
  cap: number | null;
  /** The weight that the row's sink takes, or null. */
  sink: number | null;
  masked: boolean;
  score: number;
  weight: number;
  scores: Float32Array;
  weights: Float32Array;
  v: Float32Array | null;
}

export function chain(head: HeadArrays, values: { v: Float32Array; d: number } | null, i: number, j: number): Chain {
  const { d, keys, rule } = head;
  const q = head.q.slice(i * d, (i + 1) * d);
  const k = head.k.slice(j * d, (j + 1) * d);
  const product = q.map((number, n) => number * k[n]);
  const scores = new Float32Array(keys);
  scoreRow(head, i, 0, keys, scores);
  const weights = new Float32Array(keys);
  weightRow(head, i, weights);
  const sees = scores.some((score) => score > -Infinity);
  return {
    q, k, product,
    dot: dot(q, 0, k, 0, d),
    scale: rule.scale,
    bias: head.bias ? head.bias[i * keys + j] - shiftOf(head, i) : 0,
    terms: termsOf(head, i, j),
    cap: head.terms?.cap ?? null,
    sink: head.terms?.sink == null ? null : sees ? sunk(head, total(weights)) : 0,
    masked: scores[j] === -Infinity,
    score: scores[j],
    weight: weights[j],
    scores, weights,
    v: values ? values.v.slice(j * values.d, (j + 1) * values.d) : null,
  };
}
