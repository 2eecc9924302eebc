// A word followed through the layers: what every other token brings to it, as headscope.explain.taken_in has it.
import { weightRow } from "./cells";
import type { HeadArrays } from "./head";

/** The shares of one token's new vectors; those of a layer and what it keeps add up to 1. */
export interface Followed {
  /** (layers,), what the token keeps of itself. */
  kept: Float32Array;
  /** (layers, heads, tokens), what each token brings through each head; 0 at the token itself. */
  shares: Float32Array;
  /** (layers, heads, tokens), the weights of the token's row. */
  weights: Float32Array;
}

/** A head, its values, and the vector that turns them into shares of the token's new vector. */
export interface Reading { head: HeadArrays; v: Float32Array; reader: Float32Array }

export function follow(heads: Reading[], kept: Float32Array, i: number, tokens: number): Followed {
  const [shares, weights] = [new Float32Array(heads.length * tokens), new Float32Array(heads.length * tokens)];
  heads.forEach(({ head, v, reader }, n) => {
    const row = weights.subarray(n * tokens, (n + 1) * tokens);
    weightRow(head, i, row);
    row.forEach((weight, j) => {
      let dot = 0;
      for (let x = 0; x < reader.length; x++) dot += reader[x] * v[j * reader.length + x];
      if (j !== i) shares[n * tokens + j] = weight * dot;
    });
  });
  return { kept, shares, weights };
}
