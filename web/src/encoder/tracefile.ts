// A pass as a trace file, as headscope/page/trace.py writes it for the page: Q, K, V and what the page shows at once.
import { measure, withMasses, type Roles } from "../trace/measures";
import { contentOf } from "./content";
import { findings } from "./findings";
import { headOf, writes, type Run, type Writes } from "./heads";
import type { Model } from "./model";
import type { Encoded } from "./wordpiece";

/** Statistics in Python's order; and of those that sum the weight on special tokens, their spellings. */
export interface Catalog {
  names: string[];
  masses: Record<string, string[]>;
}

type Tensor = { dtype: "F32" | "F64" | "U8"; shape: number[]; data: Float32Array | Float64Array | Uint8Array };

/** A token as people write it: without the mark of a continuation, with a dot before it; see headscope.screens.pieces. */
export function labels({ tokens, words, special }: Encoded, prefix: string): string[] {
  return tokens.map((token, at) => {
    const continued = !special[at] && at > 0 && words[at] !== null && words[at] === words[at - 1];
    const bare = continued && token.startsWith(prefix) && token.length > prefix.length ? token.slice(prefix.length) : token;
    return (continued ? "·" : "") + printable(bare);
  });
}

const printable = (text: string): string =>
  text.replace(/[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu, (sign) => {
    const code = sign.codePointAt(0)!;
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : code < 65536 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`;
  });

/** Bytes of a trace file. */
export function traceFile(model: Model, run: Run, catalog: Catalog): ArrayBuffer {
  const { about } = model;
  const { heads, layers, d } = about.config;
  const { tokens } = run.pass;
  const { names, masses } = catalog;
  const wide = d / heads;
  const tensors: Record<string, Tensor> = {};
  const statistics = new Float32Array(names.length * layers * heads).fill(NaN);
  let thumbs: { data: Uint8Array; rows: number; columns: number } | null = null;
  const { prefix, unknown, tokens: spelled } = about.vocabulary;
  const parts = contentOf(run.encoded, run.text, run.pair, prefix, spelled[unknown]);
  const { special, segments } = run.encoded;
  const known: Roles = { masses: { punctuation: parts.map(({ role }) => role === "punctuation") }, texts: special.map((apart, at) => (apart || run.pair === null ? -1 : segments[at])) };
  const roles = withMasses(known, masses, run.encoded);
  run.pass.layers.forEach(({ q, k, v, lse }, layer) => {
    for (const [name, data] of Object.entries({ q, k, v })) tensors[`layers.${layer}.${name}`] = { dtype: "F32", shape: [heads, tokens, wide], data };
    tensors[`layers.${layer}.lse`] = { dtype: "F64", shape: [heads, tokens], data: lse };
    for (let head = 0; head < heads; head++) {
      const n = layer * heads + head;
      const measured = measure(headOf(model, run.pass, layer, head), roles, true);
      thumbs ??= { data: new Uint8Array(layers * heads * measured.thumb.length), rows: measured.rows, columns: measured.columns };
      thumbs.data.set(measured.thumb, n * measured.thumb.length);
      names.forEach((name, at) => { statistics[at * layers * heads + n] = measured.statistics[name] ?? NaN; });
    }
  });
  const { data, rows, columns } = thumbs!;
  const written = writes(model, run);
  const { norms, sizes, shares } = written;
  tensors["view.thumbs"] = { dtype: "U8", shape: [layers, heads, rows, columns], data };
  tensors["view.statistics"] = { dtype: "F32", shape: [names.length, layers, heads], data: statistics };
  for (const [name, data] of Object.entries({ value_norms: norms, writes: sizes, shares }))
    tensors[`view.${name}`] = { dtype: "F32", shape: [layers, heads, tokens], data };
  return safetensors(tensors, { format: "headscope.trace", headscope: header(model, run), "headscope.view": view(model, run, names, written, known) });
}

function header({ about: { model, fingerprint, config } }: Model, { encoded, text, pair, ablated }: Run): string {
  const layer = { scale: 1 / Math.sqrt(config.d / config.heads), stage: "projected", causal: false, window: null, name: "" };
  const numbers = Array.from({ length: config.heads }, (_, head) => head);
  return JSON.stringify({
    format: "headscope.trace", version: 1, model, fingerprint, text, pair, queries: encoded, keys: null,
    layers: Array.from({ length: config.layers }, (_, number) => ({ ...layer, number, numbers })),
    outputs: {}, ablated, stack: "self", unrecorded: [], cut: null,
  });
}

function view(model: Model, run: Run, statistics: string[], written: Writes, roles: Roles): string {
  const { name, anatomy, vocabulary } = model.about;
  return JSON.stringify({
    version: 1, labels: labels(run.encoded, vocabulary.prefix), key_labels: null, name, measured: 1, anatomy, statistics, precision: "fp32", roles,
    ...findings(model, run, written),
  });
}

function safetensors(tensors: Record<string, Tensor>, metadata: Record<string, string>): ArrayBuffer {
  let at = 0;
  const entries = Object.entries(tensors).sort(([, a], [, b]) => b.data.BYTES_PER_ELEMENT - a.data.BYTES_PER_ELEMENT);
  const listed = entries.map(([name, { dtype, shape, data }]) => {
    const from = at;
    at += data.byteLength;
    return [name, { dtype, shape, data_offsets: [from, at] }];
  });
  const bare = new TextEncoder().encode(JSON.stringify({ __metadata__: metadata, ...Object.fromEntries(listed) }));
  const head = new Uint8Array(Math.ceil(bare.length / 8) * 8).fill(32);
  head.set(bare);
  const file = new Uint8Array(8 + head.length + at);
  new DataView(file.buffer).setBigUint64(0, BigInt(head.length), true);
  file.set(head, 8);
  let to = 8 + head.length;
  for (const [, { data }] of entries) {
    file.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), to);
    to += data.byteLength;
  }
  return file.buffer;
}
