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

/** The text's vector before it is normalised: the mean over the tokens, or the first token's. */
export function pooled(model: Model, { last, tokens }: Pass): Float64Array {
  const { d, pooling } = model.about.config;
  const vector = Float64Array.from(last.subarray(0, d));
  if (pooling === "cls") return vector;
  vector.fill(0);
  for (let n = 0; n < last.length; n++) vector[n % d] += last[n] / tokens;
  return vector;
}
