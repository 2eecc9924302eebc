// One head, as the arithmetic needs it: its arrays and its layer's mask.

export interface LayerRule {
  scale: number;
  stage: string;
  causal: boolean;
  window: [number | null, number | null] | null;
  keys: Uint8Array | null;
  biasHeads: number;
  /** The soft cap of the layer's scores, or null. */
  cap: number | null;
}

/** One head's tables; null for what the layer doesn't add. */
export interface HeadTerms {
  /** (queries + keys - 1): the bucket of key j for query i is buckets[j - i + queries - 1]. */
  buckets: Int32Array | null;
  byDistance: Float32Array | null;
  byKey: Float32Array | null;
  /** (buckets, d), multiplied by the query and the scale. */
  relativeKeys: Float32Array | null;
  /** (buckets, d), multiplied by the key and the scale. */
  relativeQueries: Float32Array | null;
  cap: number | null;
  sink: number | null;
}

export interface HeadArrays {
  q: Float32Array;
  k: Float32Array;
  /** Null where a trace came without: rows are then softened as a whole. */
  lse: Float32Array | Float64Array | null;
  bias: Float32Array | null;
  /** Null if the layer adds nothing to scale * q . k. */
  terms: HeadTerms | null;
  readonly valueNorms: Float32Array | null;
  rule: LayerRule;
  d: number;
  queries: number;
  keys: number;
}
