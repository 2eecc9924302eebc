// One head, as the arithmetic needs it: its arrays and its layer's mask.

export interface LayerRule {
  scale: number;
  stage: string;
  causal: boolean;
  window: [number | null, number | null] | null;
  keys: Uint8Array | null;
  biasHeads: number;
}

export interface HeadArrays {
  q: Float32Array;
  k: Float32Array;
  /** Null where a trace came without: rows are then softened as a whole. */
  lse: Float32Array | Float64Array | null;
  bias: Float32Array | null;
  readonly valueNorms: Float32Array | null;
  rule: LayerRule;
  d: number;
  queries: number;
  keys: number;
}
