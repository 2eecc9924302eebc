// The forward pass of a post-norm encoder (Devlin et al. 2018), to be read beside headscope/encoder/forward.py.
import { ACTIVATIONS, add, linear, norm } from "./products";
import { dot } from "../trace/terms";
import type { Model } from "./model";
import { Refused } from "../model/backend";

/** A change of one head's contexts: zero or their mean over the text, another run's, or without one edge. */
export interface Edit {
  layer: number;
  head: number;
  how: "zero" | "mean" | "patch" | "edge";
  source?: Pass;
  edge?: readonly [number, number];
}

/** One layer's attention: (heads, tokens, d_head) each, and log-sum-exps (heads, tokens). */
export interface Attention {
  q: Float32Array;
  k: Float32Array;
  v: Float32Array;
  lse: Float64Array;
  context: Float32Array;
}

export interface Pass {
  tokens: number;
  layers: Attention[];
  /** The input of every layer, (tokens, d_model). */
  inputs: Float32Array[];
  last: Float32Array;
}

type Sizes = { heads: number; d: number; tokens: number };

/** (tokens, d_model) as (heads, tokens, d_head). */
function split(x: Float32Array, { heads, d, tokens }: Sizes): Float32Array {
  const wide = d / heads;
  const out = new Float32Array(x.length);
  for (let h = 0; h < heads; h++)
    for (let t = 0; t < tokens; t++) out.set(x.subarray(t * d + h * wide, t * d + (h + 1) * wide), (h * tokens + t) * wide);
  return out;
}

/** (heads, tokens, d_head) as (tokens, d_model). */
export function join(x: Float32Array, { heads, d, tokens }: Sizes): Float32Array {
  const wide = d / heads;
  const out = new Float32Array(x.length);
  for (let h = 0; h < heads; h++)
    for (let t = 0; t < tokens; t++) out.set(x.subarray((h * tokens + t) * wide, (h * tokens + t + 1) * wide), t * d + h * wide);
  return out;
}

/** (tokens, d_model): Norm(word + position + segment). */
function embed(model: Model, ids: readonly number[], segments: readonly number[]): Float32Array {
  const { d, positions, eps } = model.about.config;
  if (ids.length > positions) {
    throw new Refused(`the text has ${ids.length.toLocaleString("en")} tokens, the model takes ${positions.toLocaleString("en")} at most: shorten it`);
  }
  const [words, places] = [model.weight("embeddings.word.weight"), model.weight("embeddings.position.weight")];
  const types = model.has("embeddings.token_type.weight") ? model.weight("embeddings.token_type.weight") : null;
  const x = new Float32Array(ids.length * d);
  ids.forEach((id, t) => {
    for (let n = 0; n < d; n++) x[t * d + n] = words[id * d + n] + places[t * d + n] + (types ? types[segments[t] * d + n] : 0);
  });
  return norm(x, model.weight("embeddings.norm.weight"), model.weight("embeddings.norm.bias"), eps);
}

/** softmax(q K^T scale) V for one query of a head, without the key `cut`: its context goes to `out`. Returns the log-sum-exp. */
function attendRow(
  { q, k, v }: Pick<Attention, "q" | "k" | "v">, head: number, i: number, { heads, d, tokens }: Sizes, out: Float32Array, cut = -1,
): number {
  const wide = d / heads;
  const first = head * tokens * wide;
  const scale = 1 / Math.sqrt(wide);
  const row = new Float64Array(tokens);
  let most = -Infinity;
  for (let j = 0; j < tokens; j++) {
    row[j] = j === cut ? -Infinity : scale * dot(q, first + i * wide, k, first + j * wide, wide);
    if (row[j] > most) most = row[j];
  }
  let sum = 0;
  for (let j = 0; j < tokens; j++) sum += row[j] = Math.exp(row[j] - most);
  const context = new Float64Array(wide);
  for (let j = 0; j < tokens; j++) {
    const weight = row[j] / sum;
    for (let n = 0; n < wide; n++) context[n] += weight * v[first + j * wide + n];
  }
  out.set(context, first + i * wide);
  return most + Math.log(sum);
}

/** Q, K and V of a layer's input, and what its heads make of them. */
function attend(model: Model, x: Float32Array, layer: number): Attention {
  const { heads, d } = model.about.config;
  const sizes = { heads, d, tokens: x.length / d };
  const [q, k, v] = ["query", "key", "value"].map((part) =>
    split(linear(x, model.weight(`layer.${part}.weight`, layer), model.weight(`layer.${part}.bias`, layer), d), sizes));
  const context = new Float32Array(x.length);
  const lse = new Float64Array(heads * sizes.tokens);
  for (let h = 0; h < heads; h++)
    for (let i = 0; i < sizes.tokens; i++) lse[h * sizes.tokens + i] = attendRow({ q, k, v }, h, i, sizes, context);
  return { q, k, v, lse, context };
}

/** The layer's contexts with changes made to its heads. */
function changed(held: Attention, edits: readonly Edit[], sizes: Sizes): Float32Array {
  const context = held.context.slice();
  const wide = sizes.d / sizes.heads;
  for (const { layer, head, how, source, edge } of edits) {
    const rows = context.subarray(head * sizes.tokens * wide, (head + 1) * sizes.tokens * wide);
    if (how === "zero") rows.fill(0);
    if (how === "patch") rows.set(source!.layers[layer].context.subarray(head * sizes.tokens * wide, (head + 1) * sizes.tokens * wide));
    if (how === "edge") attendRow(held, head, edge![0], sizes, context, edge![1]);
    if (how !== "mean") continue;
    for (let n = 0; n < wide; n++) {
      let sum = 0;
      for (let t = 0; t < sizes.tokens; t++) sum += rows[t * wide + n];
      for (let t = 0; t < sizes.tokens; t++) rows[t * wide + n] = sum / sizes.tokens;
    }
  }
  return context;
}

/** x' = Norm(y + FeedForward(y)), y = Norm(x + contexts W_O). */
function after(model: Model, x: Float32Array, context: Float32Array, layer: number): Float32Array {
  const { heads, d, eps, activation } = model.about.config;
  const weight = (name: string): Float32Array => model.weight(`layer.${name}`, layer);
  const mixed = linear(join(context, { heads, d, tokens: x.length / d }), weight("attention_output.weight"), weight("attention_output.bias"), d);
  const y = norm(add(x, mixed), weight("attention_norm.weight"), weight("attention_norm.bias"), eps);
  const middle = linear(y, weight("ffn_in.weight"), weight("ffn_in.bias"), d).map(ACTIVATIONS[activation]);
  const out = linear(middle, weight("ffn_out.weight"), weight("ffn_out.bias"), weight("ffn_in.bias").length);
  return norm(add(y, out), weight("output_norm.weight"), weight("output_norm.bias"), eps);
}

/** Run the layers from one on: its input is there, and of a run that changes it, its attention as it was. */
function run(model: Model, kept: Attention[], inputs: Float32Array[], edits: readonly Edit[], known: Attention | null): Pass {
  const { layers, heads, d } = model.about.config;
  const tokens = inputs[0].length / d;
  const pass: Pass = { tokens, layers: kept, inputs, last: inputs[inputs.length - 1] };
  for (let layer = kept.length; layer < layers; layer++) {
    const held = layer === inputs.length - 1 && known ? known : attend(model, pass.last, layer);
    known = null;
    const here = edits.filter((edit) => edit.layer === layer);
    pass.layers.push(held);
    pass.last = after(model, pass.last, here.length ? changed(held, here, { heads, d, tokens }) : held.context, layer);
    if (layer + 1 < layers) pass.inputs.push(pass.last);
  }
  return pass;
}

/** The whole pass over one text. */
export function forward(model: Model, ids: readonly number[], segments: readonly number[], edits: readonly Edit[] = []): Pass {
  return run(model, [], [embed(model, ids, segments)], edits, null);
}

/** The pass with changes: layers before the first changed one are those of the pass without. */
export function rerun(model: Model, base: Pass, edits: readonly Edit[]): Pass {
  const first = Math.min(...edits.map(({ layer }) => layer));
  return run(model, base.layers.slice(0, first), base.inputs.slice(0, first + 1), edits, base.layers[first]);
}
