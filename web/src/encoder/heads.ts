// The heads of a pass: their arrays as the page takes them, and how much each writes.
import type { HeadArrays } from "../trace/head";
import { join, type Pass } from "./forward";
import type { Model } from "./model";
import { linear } from "./products";
import { dot } from "../trace/terms";
import type { Encoded } from "./wordpiece";

/** A text, its tokens and its pass. */
export interface Run {
  text: string;
  pair: string | null;
  encoded: Encoded;
  pass: Pass;
  /** Heads that are silenced in it. */
  ablated: readonly (readonly [number, number])[];
}

/** One head as the page's arithmetic takes it. */
export function headOf({ about: { config } }: Model, { tokens, layers }: Pass, layer: number, head: number): HeadArrays {
  const { q, k, lse } = layers[layer];
  const d = config.d / config.heads;
  const [from, to] = [head * tokens * d, (head + 1) * tokens * d];
  const rule = { scale: 1 / Math.sqrt(d), stage: "projected", causal: false, window: null, keys: null, biasHeads: 0, cap: null };
  return {
    q: q.subarray(from, to), k: k.subarray(from, to), lse: lse.subarray(head * tokens, (head + 1) * tokens),
    bias: null, terms: null, valueNorms: null, rule, d, queries: tokens, keys: tokens,
  };
}

export interface Writes {
  /** (layers, heads, tokens): |v_j W_O|, |c_i W_O|, and the share of the latter in what the layer's heads write. */
  norms: Float32Array;
  sizes: Float32Array;
  shares: Float32Array;
}

/** W_O of a layer, as what the sizes need: its transpose, (heads * d_head, d_model), and W_O W_O^T of each head. */
interface Output {
  transposed: Float32Array;
  grams: Float32Array[];
}

const outputs = new WeakMap<Float32Array, Output>();

function outputOf(model: Model, layer: number): Output {
  const { d, heads } = model.about.config;
  const weight = model.weight("layer.attention_output.weight", layer); // (d_model, heads * d_head)
  const known = outputs.get(weight);
  if (known) return known;
  const wide = d / heads;
  const transposed = new Float32Array(d * d);
  for (let n = 0; n < d; n++) for (let m = 0; m < d; m++) transposed[m * d + n] = weight[n * d + m];
  const grams = Array.from({ length: heads }, (_, head) => {
    const rows = transposed.subarray(head * wide * d, (head + 1) * wide * d);
    return linear(rows, rows, null, d);
  });
  outputs.set(weight, { transposed, grams });
  return { transposed, grams };
}

/** |x W_O| of each row of a head's vectors: the root of x (W_O W_O^T) x. */
function sizesOf(vectors: Float32Array, gram: Float32Array, wide: number): Float32Array {
  const turned = linear(vectors, gram, null, wide);
  return new Float32Array(vectors.length / wide).map((_, t) => Math.sqrt(Math.max(0, dot(vectors, t * wide, turned, t * wide, wide))));
}

export function writes(model: Model, { pass, ablated }: Run): Writes {
  const { d, heads, layers } = model.about.config;
  const { tokens } = pass;
  const wide = d / heads;
  const [norms, sizes, shares] = Array.from({ length: 3 }, () => new Float32Array(layers * heads * tokens));
  pass.layers.forEach(({ v, context }, layer) => {
    const { transposed, grams } = outputOf(model, layer);
    const heard = context.slice();
    for (const [l, head] of ablated) if (l === layer) heard.fill(0, head * tokens * wide, (head + 1) * tokens * wide);
    const total = linear(join(heard, { heads, d, tokens }), model.weight("layer.attention_output.weight", layer), null, d);
    const back = linear(total, transposed, null, d); // total W_O^T, (tokens, heads * d_head)
    for (let head = 0; head < heads; head++) {
      const [from, to] = [head * tokens * wide, (head + 1) * tokens * wide];
      const at = (layer * heads + head) * tokens;
      norms.set(sizesOf(v.subarray(from, to), grams[head], wide), at);
      sizes.set(sizesOf(heard.subarray(from, to), grams[head], wide), at);
      for (let t = 0; t < tokens; t++)
        shares[at + t] = dot(heard, from + t * wide, back, t * d + head * wide, wide) / (dot(total, t * d, total, t * d, d) || 1);
    }
  });
  return { norms, sizes, shares };
}
