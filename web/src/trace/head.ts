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

/** What models add to scale * q . k. */
export const TABLES = ["by_distance", "by_key", "relative_keys", "relative_queries"] as const;
export type TermName = (typeof TABLES)[number];

/** One head's tables, as `TABLES` names them, with null for what the layer doesn't add. */
export interface HeadTerms extends Partial<Record<TermName, Float32Array | null>> {
  /** (queries + keys - 1): the bucket of key j for query i is buckets[j - i + queries - 1]; `relative_keys` and `relative_queries` are (buckets, d). */
  buckets: Int32Array | null;
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
