// A trace: the worker's object with all arrays, and the information that the page gets about it.
import { follow, type Followed, type Reading } from "./follow";
import { TABLES, type HeadArrays, type HeadTerms, type LayerRule } from "./head";
import type { Some } from "./masses";
import { measuredShare, type Roles } from "./measures";
import { floats, FormatError, readSafetensors, type Safetensors } from "./safetensors";

export interface Axis {
  tokens: string[];
  ids: number[];
  segments: number[];
  special: boolean[];
  words: (number | null)[];
  spans?: ([number, number] | null)[];
  labels: string[];
  /** What the spans count in; null where the text is not known. */
  texts: [string | null, string | null];
}

export interface Part {
  name: string;
  count: number;
  share?: number;
  meaning?: string;
  shape?: number[];
}

export interface Anatomy {
  class: string;
  total: number;
  extra: number;
  sizes: Record<string, number>;
  components: Part[];
  norm: string;
  /** Norms come before attention and the feed-forward, not after the sums. */
  first: boolean;
  /** Of a score, under the root. */
  divisor: number;
  /** Scores depend on the distance of two tokens. */
  distances: boolean;
  /** The forms that layers have, and which of them each has. */
  kinds: { before: boolean; rotates: boolean; rows: Part[] }[];
  layers: number[];
}

/** As headscope.explain.findings has it: heads, queries and keys by number. */
export interface Finding {
  kind: string;
  sentence: string;
  numbers: Record<string, number>;
  cells: { layer: number; head: number; query: number | null; key: number | null }[];
  token: string | null;
}

/** A part of a trace that the page does not have. */
export interface Piece {
  trace: number;
  want: "head" | "values" | "norms";
  layer: number;
  head: number;
}

/** Thrown where an answer needs such a part. */
export class Absent extends Error {
  constructor(readonly piece: Piece) {
    super(`${piece.want} of ${piece.layer}.${piece.head}`);
  }
}

/** What the page knows of a trace; Q, K and V stay with the worker. */
export interface TraceInfo {
  model: string;
  /** The model's display name. */
  name: string;
  /** 1 if thumbnails and statistics are from every query, n if from every nth run of eight. */
  measured: number;
  text: string | null;
  pair: string | null;
  /** The stack of attention: self, or encoder, decoder, cross, … */
  stack: string;
  queries: Axis;
  keys: Axis;
  layers: LayerRule[];
  layerNumbers: number[];
  /** By layer: the heads' numbers in the model. */
  headNumbers: number[][];
  heads: number;
  dHead: number;
  hasValues: boolean;
  ablated: [number, number][];
  /** Descriptions of attention that ran in the same forward pass but was not recorded. */
  unrecorded: string[];
  /** What was done to the text before the model saw it, in sentences. */
  notes: string[];
  /** Heads (layer * heads + head) whose weights are not numbers. */
  broken: ReadonlySet<number>;
  bytes: number;
  anatomy: Anatomy | null;
  /** Null where none were looked for: a long text, or a file that Trace.save wrote. */
  findings: Finding[] | null;
  /** The cell that a fresh page has pinned, by number. */
  opening: { layer: number; head: number; query: number; key: number } | null;
  statistics: Record<string, Float32Array> | null;
  /** Of the keys, beside those that spellings tell; empty in a file that Trace.save wrote. */
  roles: Roles;
  thumbs: { data: Uint8Array; rows: number; columns: number } | null;
  /** True if only the header is here; the rest is fetched when somebody looks at it. */
  away: boolean;
  /** Heads (layer * heads + head) whose thumbnails and statistics are not here yet. */
  awaited: ReadonlySet<number>;
  /** True if |v W_O| can be had. */
  hasNorms: boolean;
  /** What is found of each token that is followed through the layers, as headscope.page.follow_parts has it; null where none can be. */
  followed: Float32Array | null;
  /** Of the opening's query, (2, layers, keys): how much each masked token turns it, and its rollout so far. */
  beside: Float32Array | null;
  valueNorms: Float32Array | null;
  writes: Float32Array | null;
  shares: Float32Array | null;
}

/** A token's label if Python sent none: without the vocabulary's marks, with a dot before a continuation. */
export function plainLabel(token: string, continued: boolean): string {
  const bare = token.startsWith("##") && token.length > 2 ? token.slice(2) : token.replace(/^[Ġ▁](?=.)/u, "");
  return (continued ? "·" : "") + bare;
}

/** Names that many folders of models share: as headscope.page.trace has it. */
const PLAIN_FOLDER = /^((pytorch_|onnx_|final_|best_)?model|models|output|outputs|(best|last|final|checkpoint|epoch|step)([-_]?\w*\d)?)$/i;

/** A folder is called by its last part, one of a common name by its parent's as well; a hub id stays whole. */
export function plainName(name: string): string {
  if (!/^(\/|\.|[A-Za-z]:\\)/.test(name)) return name;
  const [last = name, outer] = name.replace(/[\\/]+$/, "").split(/[\\/]/).reverse();
  return outer && PLAIN_FOLDER.test(last) ? `${outer}/${last}` : last;
}

function axis(kept: Omit<Axis, "labels" | "texts">, labels: string[] | null | undefined, ...texts: Axis["texts"]): Axis {
  return {
    ...kept,
    texts,
    labels:
      labels ??
      kept.tokens.map((token, at) =>
        plainLabel(token, at > 0 && kept.words[at] !== null && kept.words[at] === kept.words[at - 1]),
      ),
  };
}

/** Converted or fetched numbers that are kept at a time, and the parts that are kept whatever their size. */
const MOST_KEPT = 1 << 24;
const LEAST_KEPT = 8;

export class HeldTrace {
  readonly info: TraceInfo;
  private readonly file: Safetensors;
  private readonly away: boolean;
  private readonly kept = new Map<string, Float32Array>();
  private floats = 0;
  private readonly sums = new Map<string, Float32Array | Float64Array>();

  constructor(raw: Uint8Array, private readonly id = 0) {
    this.file = readSafetensors(raw);
    const { metadata, entries } = this.file;
    if (metadata.format !== "headscope.trace" || !metadata.headscope) {
      throw new FormatError("this is a safetensors file, but not a headscope trace");
    }
    const { version, layers, model, text, pair, stack = "self", ablated, unrecorded = [], notes = [], ...about } = JSON.parse(metadata.headscope);
    if (version !== 1 && version !== 2) throw new FormatError(`the trace has format version ${version}; this page supports 1 and 2`);
    const { anatomy = null, findings = null, opening = null, roles = { masses: {}, texts: [] }, ...view } = JSON.parse(metadata["headscope.view"] ?? "{}");
    const away: Record<string, number[]> | undefined = view.away;
    this.away = away !== undefined;
    for (const [name, shape] of Object.entries(away ?? {})) entries.set(name, { dtype: "F32", shape, data_offsets: [0, 0] });
    const first = entries.get("layers.0.q");
    if (!first) throw new FormatError("the trace has no layers");
    layers.forEach((_: unknown, index: number) => {
      const heads = entries.get(`layers.${index}.q`)?.shape[0];
      if (heads !== first.shape[0]) throw new FormatError(`layer ${index} has ${heads} heads, layer 0 has ${first.shape[0]}`);
    });
    const queries = axis(about.queries, view.labels, text, pair);
    const heads = first.shape[0];
    const thumbs = entries.get("view.thumbs");
    this.info = {
      model, text, pair, stack, queries, heads, ablated, unrecorded, notes, anatomy, findings, opening, roles,
      name: view.name ?? plainName(model),
      measured: view.measured ?? measuredShare(first.shape[1], entries.get("layers.0.k")?.shape[1] ?? 0),
      keys: about.keys ? axis(about.keys, view.key_labels, null, null) : queries,
      layers: layers.map(({ scale, stage, causal, window, cap = null }: LayerRule, index: number): LayerRule => ({
        scale, stage, causal, window, cap,
        keys: entries.has(`layers.${index}.mask.keys`) ? this.file.bytes(`layers.${index}.mask.keys`).slice() : null,
        biasHeads: entries.get(`layers.${index}.mask.bias`)?.shape[0] ?? 0,
      })),
      layerNumbers: layers.map((layer: { number?: number | null }, index: number) => layer.number ?? index),
      headNumbers: layers.map(
        (layer: { numbers?: number[] | null }) => layer.numbers ?? Array.from({ length: heads }, (_, index) => index),
      ),
      dHead: first.shape[2],
      hasValues: entries.has("layers.0.v"),
      broken: this.broken(layers.length, heads),
      bytes: raw.byteLength,
      statistics: this.statistics(view.statistics),
      thumbs: thumbs
        ? { data: this.file.bytes("view.thumbs").slice(), rows: thumbs.shape[2], columns: thumbs.shape[3] }
        : null,
      away: this.away,
      awaited: new Set(),
      hasNorms: view.norms ?? entries.has("view.value_norms"),
      followed: this.optional("view.followed"),
      beside: this.optional("view.beside"),
      valueNorms: this.optional("view.value_norms"),
      writes: this.optional("view.writes"),
      shares: this.optional("view.shares"),
    };
  }

  /** One head's arrays, converted to 32 bits when it is selected. */
  head(layer: number, head: number): HeadArrays {
    const lack = this.piece("head", layer, head);
    return this.around(layer, head, this.slice(`layers.${layer}.q`, head, lack), this.slice(`layers.${layer}.k`, this.keyHead(layer, head), lack));
  }

  /** What belongs to one head's queries and keys. */
  private around(layer: number, head: number, q: Float32Array, k: Float32Array): HeadArrays {
    const [[, queries, d], [, keys]] = [this.shape(`layers.${layer}.q`), this.shape(`layers.${layer}.k`)];
    const rule = this.info.layers[layer];
    const lse = this.away ? null : this.logSumExps(layer).subarray(head * queries, (head + 1) * queries);
    const bias = rule.biasHeads ? this.slice(`layers.${layer}.mask.bias`, rule.biasHeads > 1 ? head : 0, this.piece("head", layer, head)) : null;
    const norms = (): Float32Array | null => this.norms(layer, head);
    return { q, k, lse, bias, terms: this.terms(layer, head), rule, d, queries, keys, get valueNorms() { return norms(); } };
  }

  private piece(want: Piece["want"], layer: number, head: number): Piece {
    return { trace: this.id, want, layer, head };
  }

  private shape(name: string): number[] {
    return this.file.entries.get(name)!.shape;
  }

  /** (keys,), |v W_O| of one head. */
  private norms(layer: number, head: number): Float32Array | null {
    const { info } = this;
    if (!info.hasNorms) return null;
    const keys = info.keys.tokens.length;
    const at = (layer * info.heads + head) * keys;
    if (info.valueNorms) return info.valueNorms.subarray(at, at + keys);
    return this.had(`norms/${layer}.${head}`, this.piece("norms", layer, head));
  }

  /** Keep a part that was fetched. */
  feed({ want, layer, head }: Piece, data: Float32Array): void {
    const keyHead = this.keyHead(layer, head);
    const names: Record<Piece["want"], [string, number][]> = {
      head: [[`layers.${layer}.q`, head], [`layers.${layer}.k`, keyHead]],
      values: [[`layers.${layer}.v`, keyHead]],
      norms: [],
    };
    const { biasHeads } = this.info.layers[layer];
    if (want === "head" && biasHeads) names.head.push([`layers.${layer}.mask.bias`, biasHeads > 1 ? head : 0]);
    if (want === "norms") this.keep(`norms/${layer}.${head}`, data);
    let from = 0;
    for (const [name, index] of names[want]) {
      const [, rows, d] = this.shape(name);
      this.keep(`${name}/${index}`, data.slice(from, from + rows * d));
      from += rows * d;
    }
  }

  /** The vectors of some tokens of a head, for what lies between two sets of tokens. */
  some(layer: number, head: number, queries: ArrayLike<number>): Some {
    const none = new Float32Array(0);
    return {
      q: this.rows(`layers.${layer}.q`, head, queries),
      keysAt: (places) => this.rows(`layers.${layer}.k`, this.keyHead(layer, head), places),
      head: this.around(layer, head, none, none),
    };
  }

  /** One head's score terms; null if the layer has none. */
  private terms(layer: number, head: number): HeadTerms | null {
    const stem = `layers.${layer}.terms`;
    const { cap } = this.info.layers[layer];
    const table = (name: string): Float32Array | null => {
      const entry = this.file.entries.get(`${stem}.${name}`);
      return entry ? this.slice(`${stem}.${name}`, entry.shape[0] > 1 ? head : 0, this.piece("head", layer, head)) : null;
    };
    const buckets = this.file.entries.has(`${stem}.buckets`)
      ? new Int32Array(this.file.bytes(`${stem}.buckets`).slice().buffer)
      : null;
    const tables: Partial<HeadTerms> = Object.fromEntries(TABLES.map((name) => [name, table(name)]));
    const sink = table("sinks")?.[0] ?? null;
    if (!buckets && !tables.by_key && cap === null && sink === null) return null;
    return { buckets, ...tables, cap, sink };
  }

  /** (places, d): these rows of one head. */
  private rows(name: string, index: number, places: ArrayLike<number>): Float32Array {
    const { shape: [, rows, d], dtype } = this.file.entries.get(name)!;
    const width = (dtype === "F16" ? 2 : 4) * d;
    const all = this.file.bytes(name);
    const held = new Uint8Array(places.length * width);
    for (let n = 0; n < places.length; n++) {
      const from = (index * rows + places[n]) * width;
      held.set(all.subarray(from, from + width), n * width);
    }
    return floats(held, dtype);
  }

  /** (keys, d_value) of one head; null where values were not kept. */
  values(layer: number, head: number): { v: Float32Array; d: number } | null {
    if (!this.info.hasValues) return null;
    const name = `layers.${layer}.v`;
    return { v: this.slice(name, this.keyHead(layer, head), this.piece("values", layer, head)), d: this.shape(name)[2] };
  }

  /** What each token brings to one of them; only where `info.followed` is there. */
  follow(i: number): Followed {
    const { layers, heads, queries } = this.info;
    const readings = layers.flatMap((_, layer) => Array.from({ length: heads }, (__, head): Reading =>
      [this.head(layer, head), this.values(layer, head)!.v, this.rows("view.readers", layer * heads + head, [i])]));
    return follow(readings, this.optional("view.kept")!, i, queries.tokens.length);
  }

  private keyHead(layer: number, head: number): number {
    return Math.floor((head * this.shape(`layers.${layer}.k`)[0]) / this.info.heads);
  }

  private slice(name: string, index: number, lack: Piece): Float32Array {
    const entry = this.file.entries.get(name);
    if (!entry) throw new FormatError(`the trace lacks ${name}`);
    const key = `${name}/${index}`;
    if (this.away) return this.had(key, lack);
    let part = this.kept.get(key);
    if (!part) {
      const [, rows = 1, d = 1] = entry.shape;
      const width = rows * d * (entry.dtype === "F16" ? 2 : 4);
      part = floats(this.file.bytes(name).subarray(index * width, (index + 1) * width), entry.dtype);
      this.keep(key, part);
    }
    return part;
  }

  /** A part that was fetched; the one that was not used for the longest is dropped first. */
  private had(key: string, lack: Piece): Float32Array {
    const part = this.kept.get(key);
    if (!part) throw new Absent(lack);
    this.kept.delete(key);
    this.kept.set(key, part);
    return part;
  }

  private keep(key: string, part: Float32Array): void {
    this.drop(key);
    this.kept.set(key, part);
    this.floats += part.length;
    while (this.floats > MOST_KEPT && this.kept.size > LEAST_KEPT) this.drop(this.kept.keys().next().value!);
  }

  private drop(key: string): void {
    this.floats -= this.kept.get(key)?.length ?? 0;
    this.kept.delete(key);
  }

  /** (heads, queries), in 64 bits if the file has them. */
  private logSumExps(layer: number): Float32Array | Float64Array {
    const name = `layers.${layer}.lse`;
    const known = this.sums.get(name);
    if (known) return known;
    const { dtype } = this.file.entries.get(name)!;
    const bytes = this.file.bytes(name);
    const sums = dtype === "F64" ? new Float64Array(bytes.slice().buffer) : floats(bytes, dtype);
    this.sums.set(name, sums);
    return sums;
  }

  private optional(name: string): Float32Array | null {
    const entry = this.file.entries.get(name);
    return entry ? floats(this.file.bytes(name), entry.dtype) : null;
  }

  private broken(layers: number, heads: number): Set<number> {
    const broken = new Set<number>();
    for (let layer = 0; layer < layers && !this.away; layer++) {
      const lse = this.logSumExps(layer);
      lse.forEach((value, n) => {
        if (Number.isNaN(value)) broken.add(layer * heads + Math.floor((n * heads) / lse.length));
      });
    }
    return broken;
  }

  private statistics(names: string[] | undefined): Record<string, Float32Array> | null {
    const all = this.optional("view.statistics");
    if (!all || !names) return null;
    const size = all.length / names.length;
    return Object.fromEntries(names.map((name, index) => [name, all.slice(index * size, (index + 1) * size)]));
  }

  /** The file's bytes. */
  get raw(): Uint8Array {
    return this.file.raw;
  }
}
