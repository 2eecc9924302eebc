// The page's arithmetic against arrays that Python wrote (make_fixture.py).
import { describe, expect, test } from "vitest";
import { rowEntropy, size, tile, viewRows } from "../src/trace/cells";
import { chain } from "../src/trace/chain";
import type { HeadArrays } from "../src/trace/head";
import { difference } from "../src/trace/difference";
import { distance, measure, measuredShare, sample } from "../src/trace/measures";
import { largestPlaces, strongestKeys } from "../src/trace/strongest";
import { floats, readSafetensors } from "../src/trace/safetensors";
import { HeldTrace, plainLabel } from "../src/trace/trace";
import { capped } from "../src/trace/terms";
import { makeShown } from "../src/text/shown";
import { file, held, info, layers, S, wanted, whole } from "./fixture";

const spelled = Object.entries(wanted.masses).map(([name, tokens]) => [name, info.keys.tokens.map((token, j) => info.keys.special[j] && tokens.includes(token))]);
const roles = { ...info.roles, masses: { ...info.roles.masses, ...Object.fromEntries(spelled) } };
const heads = Array.from({ length: info.heads }, (_, head) => head);

const worst = (a: ArrayLike<number>, b: ArrayLike<number>): number => {
  expect(a.length).toBe(b.length);
  return Array.from(a).reduce((most, x, n) => Math.max(most, Math.abs(x - b[n])), 0);
};

describe("every head of every kind of mask", () => {
  for (const layer of layers) {
    for (const head of heads) {
      test(`layer ${layer} head ${head}`, () => {
        const arrays = held.head(layer, head);
        expect(worst(viewRows(arrays, whole, 0, S, 0, S), wanted.weights[layer][head])).toBeLessThan(2e-6);
        const statistics = measure(arrays, roles, true).statistics;
        for (const [name, numbers] of Object.entries(wanted.statistics[layer])) {
          expect(Math.abs(statistics[name] - numbers[head]), name).toBeLessThan(5e-6);
          const n = layer * info.heads + head;
          expect(Math.abs(info.statistics![name][n] - numbers[head]), `${name} in the file`).toBeLessThan(5e-6);
        }
      });
    }
  }
});

test("a tile takes the file's log-sum-exp and gives the same cells", () => {
  for (const layer of layers) {
    const arrays = held.head(layer, 2);
    const full = viewRows(arrays, whole, 0, S, 0, S);
    const part = tile(arrays, whole, [3, 9, 4, 11], 6, 7);
    for (let r = 0; r < 6; r++) for (let c = 0; c < 7; c++) expect(part[r * 7 + c]).toBeCloseTo(full[(r + 3) * S + c + 4], 5);
  }
});

test("distance and change of two heads, from their definitions", () => {
  const [p, q] = [wanted.weights[0][0], wanted.weights[0][1]];
  let js = 0;
  let apart = 0;
  for (let n = 0; n < S * S; n++) {
    const m = (p[n] + q[n]) / 2;
    js += (p[n] * Math.log(p[n] / m) + q[n] * Math.log(q[n] / m)) / 2;
    apart += Math.abs(p[n] - q[n]);
  }
  const [a, b] = [sample(held.head(0, 0)), sample(held.head(0, 1))];
  expect(distance(a, b)).toBeCloseTo(Math.sqrt(js / S), 5);
  expect(distance(a, a)).toBeCloseTo(0, 3);
  const side = (head: HeadArrays) => ({ heads: head, view: makeShown(held.info, "all", true, false).view, normed: false });
  const moved = (one: HeadArrays, other: HeadArrays): number => difference(side(one), side(other), [0, S, 0, S], S, S).moved;
  expect(moved(held.head(0, 0), held.head(0, 1))).toBeCloseTo(apart / S / 2, 5);
  expect(moved(held.head(0, 0), held.head(0, 0))).toBe(0);
});

test("a sink is one more place of a row, in a head's distances as in its entropy", () => {
  const sunk = layers.filter((layer) => held.head(layer, 0).terms?.sink != null);
  expect(sunk.length).toBeGreaterThan(1);
  /** Its rows with the sink's share at their ends, those without keys left out. */
  const placed = (layer: number, head: number): number[][] => Array.from({ length: S }, (_, i) => wanted.weights[layer][head].slice(i * S, (i + 1) * S))
    .map((row) => [...row, sunk.includes(layer) && row.some((x) => x > 0) ? 1 - row.reduce((sum, x) => sum + x, 0) : 0]);
  const entropy = (row: number[]): number => row.reduce((sum, x) => (x > 0 ? sum - x * Math.log(x) : sum), 0);
  for (const [layer, other] of [[sunk[0], sunk[0]], [sunk[1], sunk[1]], [0, sunk[0]]]) {
    const [p, q] = [placed(layer, 0), placed(other, 1)];
    const js = p.flatMap((row, i) => {
      const apart = (entropy(row) + entropy(q[i])) / 2;
      return row.some((x) => x > 0) && q[i].some((x) => x > 0) ? [entropy(row.map((x, j) => (x + q[i][j]) / 2)) - apart] : [];
    });
    expect(distance(sample(held.head(layer, 0)), sample(held.head(other, 1)))).toBeCloseTo(Math.sqrt(js.reduce((sum, x) => sum + x, 0) / js.length), 4);
  }
});

test("entropies of rows have the statistic as their mean, with a sink, too; without some keys they are of what is left", () => {
  for (const layer of layers) {
    const cells = wanted.weights[layer][1];
    const rows = Array.from({ length: S }, (_, i) => cells.slice(i * S, (i + 1) * S)).filter((row) => row.some((x) => x > 0));
    const padded = info.layers[layer].keys;
    const told = rows.map((row) => rowEntropy(Float32Array.from(row), false));
    if (!padded) expect(told.reduce((sum, nats) => sum + nats, 0) / rows.length, `layer ${layer}`).toBeCloseTo(wanted.statistics[layer].entropy[1], 5);
    for (const row of rows) {
      const left = row.slice(3).map((x, _, { length }) => x / (row.slice(-length).reduce((sum, y) => sum + y, 0) || 1));
      expect(rowEntropy(Float32Array.from(row.slice(3)), true)).toBeCloseTo(-left.reduce((sum, x) => sum + (x > 0 ? x * Math.log(x) : 0), 0), 5);
    }
  }
  expect(rowEntropy(new Float32Array(4), false)).toBe(0);
});

test("rows that see nothing count nowhere; where there are no others, there is no number", () => {
  const blind = { ...held.head(0, 0), rule: { ...held.head(0, 0).rule, keys: new Uint8Array(S) } };
  const statistics = measure(blind, roles, false).statistics;
  expect(statistics).toEqual({});
  const { view } = makeShown(held.info, "all", true, false);
  expect(difference({ heads: blind, view, normed: false }, { heads: held.head(0, 1), view, normed: false }, [0, S, 0, S], S, S).moved).toBeNaN();
  const crossed = measure(held.head(0, 0), roles, false).statistics;
  expect(Object.keys(wanted.statistics[0]).filter((name) => !(name in crossed)).sort()).toEqual(["distance", "next", "offset", "other_sentence", "previous", "same"]);
});

test("long texts are measured in part", () => {
  expect([measuredShare(512, 512), measuredShare(1448, 1448), measuredShare(2048, 2048), measuredShare(4096, 4096)]).toEqual([1, 1, 2, 8]);
});

test("pooling keeps the largest", () => {
  const arrays = held.head(0, 0);
  const full = viewRows(arrays, whole, 0, S, 0, S);
  const pooled = tile(arrays, whole, [0, S, 0, S], 4, 3);
  for (let y = 0; y < 4; y++) {
    for (let x = 0; x < 3; x++) {
      let most = 0;
      for (let r = 3 * y; r < 3 * y + 3; r++) for (let c = 4 * x; c < 4 * x + 4; c++) most = Math.max(most, full[r * S + c]);
      expect(pooled[y * 3 + x]).toBeCloseTo(most, 6);
    }
  }
});

test("thumbnails of Python and of the page are the same bytes", () => {
  const cells = info.thumbs!.rows * info.thumbs!.columns;
  for (const layer of layers) {
    const mine = measure(held.head(layer, 3), roles, true).thumb;
    const theirs = info.thumbs!.data.subarray((layer * info.heads + 3) * cells, (layer * info.heads + 4) * cells);
    expect(worst(mine, theirs)).toBeLessThanOrEqual(1);
  }
});

test("hidden special tokens: the rest is given back, and rows add up to 1", () => {
  const shown = makeShown(info, "all", false, false);
  expect(shown.renormalised).toBe(true);
  expect(shown.rows.length).toBe(9);
  const rows = viewRows(held.head(0, 0), shown.view, 0, 9, 0, 9);
  for (let r = 0; r < 9; r++) {
    const full = wanted.weights[0][0].slice(shown.rows[r].tokens[0] * S, (shown.rows[r].tokens[0] + 1) * S);
    const kept = full.filter((_, j) => !info.keys.special[j]);
    const total = kept.reduce((sum, x) => sum + x, 0);
    expect(worst(rows.subarray(r * 9, r * 9 + 9), kept.map((x) => x / total))).toBeLessThan(1e-5);
  }
});

test("whole words: sum over keys, mean over queries", () => {
  const shown = makeShown(info, "all", true, true);
  expect(shown.rows[2].text).toBe("tired");
  const n = size(shown.view.rows);
  const rows = viewRows(held.head(0, 1), shown.view, 0, n, 0, n);
  const full = wanted.weights[0][1];
  const cell = (i: number, j: number): number => full[i * S + j];
  expect(rows[2 * n + 2]).toBeCloseTo((cell(2, 2) + cell(2, 3) + cell(3, 2) + cell(3, 3)) / 2, 5);
  for (let r = 0; r < n; r++) expect(rows.subarray(r * n, (r + 1) * n).reduce((a, b) => a + b, 0)).toBeCloseTo(1, 5);
});

test("A to B: only those rows and columns, nothing rescaled", () => {
  const shown = makeShown(info, "ab", true, false);
  expect([shown.rows.length, shown.columns.length, shown.partial, shown.renormalised]).toEqual([6, 6, true, false]);
  const rows = viewRows(held.head(0, 0), shown.view, 0, 6, 0, 6);
  for (let r = 0; r < 6; r++) for (let c = 0; c < 6; c++) expect(rows[r * 6 + c]).toBeCloseTo(wanted.weights[0][0][r * S + c + 6], 6);
});

test("a cell's chain ends at its weight", () => {
  for (const layer of layers) {
    const arrays = held.head(layer, 1);
    const found = chain(arrays, held.values(layer, 1), 5, 4);
    const score = wanted.scores[layer][5 * S + 4];
    if (score < -1e29) expect(found.masked).toBe(true);
    else {
      expect(found.score).toBeCloseTo(score, 5);
      const sum = found.terms.reduce((total, { value }) => total + value, found.dot * found.scale);
      expect(capped(sum, found.cap) + found.bias).toBeCloseTo(score, 5);
    }
    expect(found.weight).toBeCloseTo(wanted.weights[layer][1][5 * S + 4], 6);
    expect(found.v!.length).toBe(16);
  }
});

test("cumulative mass: the fewest keys, strongest first", () => {
  expect(strongestKeys([0.1, 0.5, 0.15, 0.25], 0.7)).toEqual([1, 3]);
  expect(strongestKeys([0.1, 0.5, 0.15, 0.25], 0.76)).toEqual([1, 3, 2]);
  expect(strongestKeys([0, 0, 0], 0.7)).toEqual([]);
  expect(strongestKeys([0.25, 0.25, 0.25, 0.25], 1)).toEqual([0, 1, 2, 3]);
});

test("equal weights: the first ones, and no more than are needed", () => {
  expect(strongestKeys([0.2, 0.2, 0.2, 0.2, 0.2], 0.5)).toEqual([0, 1, 2]);
  expect(largestPlaces([3, 1, 3, 5, 2], 3)).toEqual([3, 0, 2]);
  expect(largestPlaces([NaN, 1, -Infinity, 2, Infinity], 9)).toEqual([3, 1]);
  expect([largestPlaces([1, 2], 0), largestPlaces([], 2)]).toEqual([[], []]);
});

test("half precision, every bit pattern that a number has", () => {
  const bits = new Uint16Array([0x0000, 0x8000, 0x3c00, 0xc000, 0x7bff, 0x0001, 0x03ff, 0x0400, 0x7c00, 0x3555]);
  const found = floats(new Uint8Array(bits.buffer), "F16");
  expect(Array.from(found)).toEqual([0, -0, 1, -2, 65504, 2 ** -24, 1023 * 2 ** -24, 2 ** -14, Infinity, 0.333251953125]);
});

test("files that are none are refused in words", () => {
  expect(() => readSafetensors(new Uint8Array(4))).toThrow(/4 bytes/);
  expect(() => readSafetensors(file.subarray(0, 2000))).toThrow(/truncated/);
  expect(() => new HeldTrace(file.subarray(0, file.length - 9))).toThrow(/truncated/);
  const text = new TextEncoder().encode("{nojson}");
  const other = new Uint8Array(8 + text.length);
  other[0] = text.length;
  other.set(text, 8);
  expect(() => readSafetensors(other)).toThrow(/not JSON/);
});

test("labels of traces that come without them", () => {
  expect([plainLabel("##ed", true), plainLabel("Ġthe", false), plainLabel("▁a", false), plainLabel("##", false)]).toEqual(["·ed", "the", "a", "##"]);
});
