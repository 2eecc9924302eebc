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
  lse: Float32Array | Float64Array;
  bias: Float32Array | null;
  valueNorms: Float32Array | null;
  rule: LayerRule;
  d: number;
  queries: number;
  keys: number;
}
