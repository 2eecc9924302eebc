// NaN and infinity: never drawn, pooled or exported as a number.
import { expect, test } from "vitest";
import { css, divergingAt, paint, sequentialAt } from "../src/drawing/colour";
import { viewRows, weightRow } from "../src/trace/cells";
import { measure } from "../src/trace/measures";
import { pooled } from "../src/trace/pooling";
import type { HeadArrays } from "../src/trace/head";
import { headOf, viewOf } from "./fixture";

const S = 6;
const rows = (arrays: HeadArrays): number[][] => {
  const found = viewRows(arrays, viewOf(S), 0, S, 0, S);
  return Array.from({ length: S }, (_, r) => Array.from(found.subarray(r * S, (r + 1) * S)));
};

test.each([NaN, Infinity, -Infinity])("a query with %s has no weights, the others have", (value) => {
  const arrays = headOf(S, 2);
  arrays.q.fill(value, 4, 6);
  rows(arrays).forEach((row, r) => expect(row.every(r === 2 ? Number.isNaN : Number.isFinite)).toBe(true));
});

test("a key with NaN leaves no query that sees it any weights", () => {
  const arrays = headOf(S, 2, { causal: true });
  arrays.k[7] = NaN;
  rows(arrays).forEach((row, r) => expect(row.every(r >= 3 ? Number.isNaN : Number.isFinite)).toBe(true));
  const { statistics } = measure(arrays, { masses: {}, texts: [] }, true);
  expect(Object.values(statistics).every(Number.isNaN)).toBe(true);
});

test("a query that sees no key is no broken one", () => {
  const arrays = headOf(S, 2, { keys: new Uint8Array(S) });
  const row = new Float32Array(S);
  weightRow(arrays, 0, row);
  expect(Array.from(row)).toEqual(Array(S).fill(0));
});

test("NaN survives pooling, and has a colour of its own on every map", () => {
  const out = pooled([0, 1, 0, 4], 1, 2, () => Float32Array.of(0.9, NaN, 0.1, 0.2)).data;
  expect(out[0]).toBeNaN();
  expect(out[1]).toBeCloseTo(0.2);
  for (const signed of [false, true]) {
    for (const dark of [false, true]) {
      const every = paint(Float32Array.from([NaN, ...Array.from({ length: 2001 }, (_, n) => n / 1000 - 1)]), 1, "linear", dark, signed);
      const [broken, ...others] = Array.from(new Uint32Array(every.buffer));
      expect(others).not.toContain(broken);
    }
  }
  expect(css(sequentialAt(NaN, false))).toBe(css(divergingAt(NaN, false)));
  expect(css(sequentialAt(NaN, true))).toBe("rgb(214 0 60)");
});
