// Causality and windows allow the same cells here and in Python: tests/data/rules.json holds both.
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { allowed, allowedKeys } from "../src/trace/cells";
import type { HeadArrays } from "../src/trace/head";

interface Case {
  causal: boolean;
  window: [number | null, number | null] | null;
  queries: number;
  keys: number;
  cells: string[];
}

const cases = JSON.parse(readFileSync(new URL("../../tests/data/rules.json", import.meta.url), "utf-8")) as Case[];

test.each(cases)("causal $causal, window $window, $queries queries, $keys keys", ({ causal, window, queries, keys, cells }) => {
  const head = { queries, keys, bias: null, rule: { causal, window, keys: null } } as unknown as HeadArrays;
  const rows = Array.from({ length: queries }, (_, i) =>
    Array.from({ length: keys }, (_, j) => (allowed(head, i + keys - queries, j) ? "1" : "0")).join(""));
  expect(rows).toEqual(cells);
  rows.forEach((row, i) => expect(allowedKeys(head, i, Int32Array.from(row, (_, j) => j))).toBe(row.replaceAll("0", "").length));
});
