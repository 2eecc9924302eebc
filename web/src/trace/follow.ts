// A word followed through the layers: what every other token brings to it, as headscope.explain.taken_in has it.
import { weightRow } from "./cells";
import type { HeadArrays } from "./head";
import { dot } from "./terms";

/** A token's new vectors, layer by layer: what it keeps of itself and the shares of all others add up to 1. */
export interface Followed {
  /** (layers, tokens), the share of each over all heads; what is kept at the token itself. */
  total: Float32Array;
  /** (layers, heads, tokens), what each brings through each head, 0 at the token itself; and the weights of its row. */
  shares: Float32Array;
  weights: Float32Array;
}

/** A head, its values, and the vector that turns them into shares of the token's new vector. */
export type Reading = [head: HeadArrays, v: Float32Array, reader: Float32Array];

/** `kept` is (layers, tokens), of every token. */
export function follow(readings: Reading[], kept: Float32Array, i: number, tokens: number): Followed {
  const total = kept.map((value, n) => (n % tokens === i ? value : 0));
  const [shares, weights] = [0, 0].map(() => new Float32Array(readings.length * tokens));
  const heads = (readings.length * tokens) / kept.length;
  readings.forEach(([head, v, reader], n) => {
    const row = weights.subarray(n * tokens, (n + 1) * tokens);
    weightRow(head, i, row);
    row.forEach((weight, j) => {
      if (j !== i) total[Math.floor(n / heads) * tokens + j] += shares[n * tokens + j] = weight * dot(reader, 0, v, j * reader.length, reader.length);
    });
  });
  return { total, shares, weights };
}
