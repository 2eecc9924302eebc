// What stands on top of the encoder: the masked word, the text's vector.
import type { Pass } from "./forward";
import type { Model } from "./model";
import { ACTIVATIONS, linear, norm } from "./products";

/** Logits of every token of the vocabulary at one place. */
export function maskedWord(model: Model, last: Float32Array, place: number): Float32Array {
  const { d, eps, transform } = model.about.config;
  let x: Float32Array = last.slice(place * d, (place + 1) * d);
  if (model.has("masked_lm.transform.weight")) {
    x = linear(x, model.weight("masked_lm.transform.weight"), model.weight("masked_lm.transform.bias"), d).map(ACTIVATIONS[transform]);
    x = norm(x, model.weight("masked_lm.norm.weight"), model.weight("masked_lm.norm.bias"), eps);
  }
  const decoder = model.has("masked_lm.decoder") ? "masked_lm.decoder" : "embeddings.word.weight";
  return linear(x, model.weight(decoder), model.has("masked_lm.bias") ? model.weight("masked_lm.bias") : null, d);
}

/** The parts of tokens in the text's vector before it is normalised: a mean over the tokens, or the first token alone. */
export function* partsOf(model: Model, { last, tokens }: Pass): Generator<Float64Array> {
  const { d, pooling, width } = model.about.config;
  const counted = pooling === "cls" ? 1 : tokens;
  for (let t = 0; t < tokens; t++)
    yield Float64Array.from(last.subarray(t * d, t * d + width), (value) => (t < counted ? value / counted : 0));
}

/** The text's vector before it is normalised. */
export function pooled(model: Model, pass: Pass): Float64Array {
  const vector = new Float64Array(model.about.config.width);
  for (const part of partsOf(model, pass)) part.forEach((value, n) => { vector[n] += value; });
  return vector;
}
