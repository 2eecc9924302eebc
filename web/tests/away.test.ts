// A trace of which only the header is here: what an answer lacks is named, and fed, its numbers are those of the whole file.
import { expect, test } from "vitest";
import { Desk } from "../src/trace/desk";
import { floats, readSafetensors } from "../src/trace/safetensors";
import { Absent, HeldTrace, type Piece } from "../src/trace/trace";
import { file as raw, held as whole, viewOf } from "./fixture";

const file = readSafetensors(raw);

/** The file's metadata and masks, and the shapes of the rest. */
function headerOf(): Uint8Array {
  const away: Record<string, number[]> = {};
  const held: Record<string, unknown> = {};
  const parts: Uint8Array[] = [];
  let at = 0;
  for (const [name, { dtype, shape }] of file.entries) {
    if (/^layers\.\d+\.(q|k|v|mask\.bias)$/.test(name)) away[name] = shape;
    if (!name.endsWith("mask.keys")) continue;
    const bytes = file.bytes(name);
    held[name] = { dtype, shape, data_offsets: [at, at + bytes.length] };
    parts.push(bytes);
    at += bytes.length;
  }
  const view = { ...JSON.parse(file.metadata["headscope.view"] ?? "{}"), statistics: undefined, away, norms: file.entries.has("view.value_norms") };
  held.__metadata__ = { ...file.metadata, "headscope.view": JSON.stringify(view) };
  const header = new TextEncoder().encode(JSON.stringify(held));
  const out = new Uint8Array(8 + header.length + at);
  new DataView(out.buffer).setBigUint64(0, BigInt(header.length), true);
  out.set(header, 8);
  let from = 8 + header.length;
  for (const part of parts) {
    out.set(part, from);
    from += part.length;
  }
  return out;
}

/** As a server answers: the head's arrays one after the other. */
function served({ want, layer, head }: Piece): Float32Array {
  const slice = (name: string, index: number): number[] => {
    const { dtype, shape: [, rows, d] } = file.entries.get(name)!;
    return [...floats(file.bytes(name), dtype).subarray(index * rows * d, (index + 1) * rows * d)];
  };
  const heads = file.entries.get(`layers.${layer}.q`)!.shape[0];
  const keyHead = Math.floor((head * file.entries.get(`layers.${layer}.k`)!.shape[0]) / heads);
  if (want === "values") return Float32Array.from(slice(`layers.${layer}.v`, keyHead));
  const bias = file.entries.get(`layers.${layer}.mask.bias`);
  return Float32Array.from([
    ...slice(`layers.${layer}.q`, head), ...slice(`layers.${layer}.k`, keyHead),
    ...(bias ? slice(`layers.${layer}.mask.bias`, bias.shape[0] > 1 ? head : 0) : []),
  ]);
}

/** Answer, and feed what is lacking, until there is an answer. */
function answered<T>(desk: Desk, ask: () => T): { answer: T; lacked: string[] } {
  const lacked: string[] = [];
  for (;;) {
    try {
      return { answer: ask(), lacked };
    } catch (error) {
      if (!(error instanceof Absent)) throw error;
      lacked.push(error.piece.want);
      expect(lacked.length).toBeLessThan(4);
      desk.answer("feed", { piece: error.piece, data: served(error.piece) });
    }
  }
}

test("every head's rows and chain are those of the whole file", () => {
  const { layers, heads, queries, keys } = whole.info;
  const desk = new Desk();
  const full = new Desk();
  full.answer("open", { id: 4, bytes: raw.slice().buffer });
  const info = desk.answer("open", { id: 4, bytes: headerOf().slice().buffer as ArrayBuffer });
  expect(info.away).toBe(true);
  expect(info.queries).toEqual(whole.info.queries);
  const view = viewOf(queries.tokens.length, keys.tokens.length);
  for (let layer = 0; layer < layers.length; layer++) {
    for (let head = 0; head < heads; head++) {
      if (whole.head(layer, head).terms) continue; // a trace with score terms is sent whole
      const rows = { trace: 4, layer, head, mean: null, view, from: 1, to: 3, normed: false };
      const { answer, lacked } = answered(desk, () => desk.answer("rows", rows));
      expect(lacked).toEqual(["head"]);
      const expected = full.answer("rows", rows);
      answer.forEach((weight, n) => expect(weight).toBeCloseTo(expected[n], 6));
      const tile = { trace: 4, layer, head, mean: null, minus: null, view, box: [1, 3, 1, 4] as [number, number, number, number], height: 2, width: 3, normed: false };
      const part = full.answer("tile", tile);
      desk.answer("tile", tile).forEach((weight, n) => expect(weight).toBeCloseTo(part[n], 5));
      const cell = { trace: 4, layer, head, i: 2, j: 1 };
      const chain = answered(desk, () => desk.answer("chain", cell));
      const link = full.answer("chain", cell);
      expect(link.v ? ["values"] : []).toEqual(expect.arrayContaining(chain.lacked)); // heads may share values
      expect(chain.answer.weight).toBeCloseTo(link.weight, 6);
      expect([...(chain.answer.v ?? [])]).toEqual([...(link.v ?? [])]);
    }
  }
});

test("norms are fetched only where they are asked for", () => {
  const held = new HeldTrace(headerOf(), 2);
  held.feed({ trace: 2, want: "head", layer: 0, head: 0 }, served({ trace: 2, want: "head", layer: 0, head: 0 }));
  const head = held.head(0, 0);
  if (!held.info.hasNorms) {
    expect(head.valueNorms).toBeNull();
    return;
  }
  expect(() => head.valueNorms).toThrow(Absent);
  held.feed({ trace: 2, want: "norms", layer: 0, head: 0 }, new Float32Array(head.keys).fill(2));
  expect([...head.valueNorms!]).toEqual(Array(head.keys).fill(2));
});
