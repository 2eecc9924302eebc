// What a head costs, counted: where every query sees every key, functions are called for a row, not for a cell.
import { Session } from "node:inspector/promises";
import { expect, test } from "vitest";
import { viewRows } from "../src/trace/cells";
import { difference } from "../src/trace/difference";
import type { HeadArrays } from "../src/trace/head";
import { distance, measure, sample } from "../src/trace/measures";
import { headOf, viewOf } from "./fixture";

/** How often functions of the worker's modules are called. */
async function calls(work: () => unknown): Promise<number> {
  const session = new Session();
  session.connect();
  await session.post("Profiler.enable");
  await session.post("Profiler.startPreciseCoverage", { callCount: true, detailed: false });
  work();
  const { result } = await session.post("Profiler.takePreciseCoverage");
  session.disconnect();
  const ours = result.filter(({ url }) => url.includes("/src/trace/"));
  return ours.flatMap(({ functions }) => functions).reduce((sum, { ranges: [{ count }] }) => sum + count, 0);
}

const head = (S: number): HeadArrays => headOf(S, 4);
const roles = (S: number) => ({ masses: { first: Array.from({ length: S }, (_, j) => j === 0) }, texts: Array.from({ length: S }, (_, j) => j % 2) });

test.each<[string, (S: number) => unknown]>([
  ["its statistics", (S) => measure(head(S), roles(S), true)],
  ["its rows for distances", (S) => sample(head(S))],
  ["its picture", (S) => viewRows(head(S), viewOf(S), 0, S, 0, S)],
  ["its picture in words", (S) => viewRows(head(S), viewOf(S, S, 2), 0, S, 0, S / 2)],
  ["its difference from another", (S) => difference({ heads: head(S), view: viewOf(S), normed: false }, { heads: head(S), view: viewOf(S), normed: false }, [0, S, 0, S], 8, 8)],
])("of four times the tokens, %s take no more than four times the calls", async (_, work) => {
  const [few, many] = [await calls(() => work(64)), await calls(() => work(256))];
  expect(few).toBeGreaterThan(0);
  expect(many).toBeLessThan(4.5 * few);
});

test("a distance of two heads takes as many calls for long rows as for short ones", async () => {
  const [few, many] = [64, 256].map((S) => sample(head(S)));
  expect(await calls(() => distance(many, many))).toBeLessThan(4.5 * (await calls(() => distance(few, few))));
});
