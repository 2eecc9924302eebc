// The trace that Python wrote (make_fixture.py), and the numbers that it expects of it; plain heads, views and labels.
import { readFileSync } from "node:fs";
import { makeShown, type Label } from "../src/text/shown";
import type { Groups, View } from "../src/trace/cells";
import type { HeadArrays, LayerRule } from "../src/trace/head";
import { HeldTrace } from "../src/trace/trace";

const read = (name: string): Buffer => readFileSync(new URL(name, import.meta.url));

export const file = new Uint8Array(read("./fixture.safetensors"));
export const wanted = JSON.parse(read("./fixture.json").toString()) as {
  weights: number[][][];
  scores: number[][];
  masses: Record<string, string[]>;
  statistics: Record<string, number[]>[];
};
export const { weights } = wanted;
export const held = new HeldTrace(file);
export const { info } = held;
export const S = info.queries.tokens.length;
export const whole = makeShown(info, "all", true, false).view;
export const layers = [...info.layers.keys()];

/** So many tokens, each group of so many of them. */
const groups = (all: number, wide = 1): Groups => ({
  starts: Int32Array.from({ length: all / wide + 1 }, (_, n) => wide * n), members: Int32Array.from({ length: all }, (_, n) => n),
});

/** Every query by itself, and every key, or every few of them. */
export const viewOf = (queries: number, keys = queries, wide = 1): View => ({ rows: groups(queries), columns: groups(keys, wide), renormalise: false });

/** Every query sees every key. */
export const OPEN: LayerRule = { scale: 1, stage: "projected", causal: false, window: null, keys: null, biasHeads: 0, cap: null };

/** Of so many tokens and dimensions. */
export const headOf = (tokens: number, d: number, rule: Partial<LayerRule> = {}): HeadArrays => ({
  q: Float32Array.from({ length: tokens * d }, (_, n) => Math.sin(n)), k: Float32Array.from({ length: tokens * d }, (_, n) => Math.cos(n)),
  lse: null, bias: null, terms: null, valueNorms: null, rule: { ...OPEN, ...rule }, d, queries: tokens, keys: tokens,
});

export const labelOf = (text: string, tokens: number[], more: Partial<Label> = {}): Label =>
  ({ text, continues: false, special: false, segment: 0, title: "", tokens, repeats: null, ...more });
