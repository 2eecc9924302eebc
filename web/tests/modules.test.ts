// The house of the page: no module needs, by however many steps, itself. Imports of types count.
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import ts from "typescript";

const SOURCE = fileURLToPath(new URL("../src", import.meta.url));
const files = readdirSync(SOURCE, { recursive: true, encoding: "utf-8" }).filter((name) => /\.tsx?$/.test(name)).map((name) => name.replaceAll("\\", "/"));

/** The file that `./trace` in `trace/cells.ts` stands for; style sheets and packages are none of ours. */
function resolve(from: string, name: string): string | null {
  if (!name.startsWith(".") || name.endsWith(".css")) return null;
  const bare = relative(SOURCE, join(SOURCE, dirname(from), name.replace(/\?.*$/, ""))).replaceAll("\\", "/");
  const match = [`${bare}.ts`, `${bare}.tsx`, `${bare}/index.ts`].find((one) => files.includes(one));
  if (!match) throw new Error(`${from} imports ${name}, which is not in src`);
  return match;
}

const needs = new Map(
  files.map((name) => [
    name,
    ts.preProcessFile(readFileSync(join(SOURCE, name), "utf-8")).importedFiles.flatMap((one) => resolve(name, one.fileName) ?? []),
  ]),
);

/** A way from a module back to itself; null where there is none. */
function circle(graph: Map<string, string[]>): string[] | null {
  const done = new Set<string>();
  const walk = (name: string, way: string[]): string[] | null => {
    if (way.includes(name)) return [...way.slice(way.indexOf(name)), name];
    if (done.has(name)) return null;
    for (const next of graph.get(name) ?? []) {
      const round = walk(next, [...way, name]);
      if (round) return round;
    }
    done.add(name);
    return null;
  };
  for (const name of graph.keys()) {
    const round = walk(name, []);
    if (round) return round;
  }
  return null;
}

test("a circle is found where there is one", () => {
  expect(circle(new Map([["a", ["b"]], ["b", ["c", "d"]], ["c", []], ["d", ["b"]]]))).toEqual(["b", "d", "b"]);
});

test("all modules are read, and types are counted", () => {
  expect(files.length).toBeGreaterThan(40);
  expect(needs.get("trace/cells.ts")).toContain("trace/head.ts");
  expect(needs.get("trace/engine.ts")).toContain("trace/worker.ts");
});

test("imports make no circle", () => {
  expect(circle(needs)).toBeNull();
});

/** Every module that a page's start needs, by however many steps. */
function closure(start: string): Set<string> {
  const reached = new Set([start]);
  for (const name of reached) for (const next of needs.get(name)!) reached.add(next);
  return reached;
}

test("a page carries nothing of the other's, and what both need is there once", () => {
  const [page, report] = [closure("main.tsx"), closure("report/main.tsx")];
  expect([...page].filter((name) => /^(report\/|encoder\/|.*\blive\.)/.test(name))).toEqual([]);
  expect([...report].filter((name) => name.startsWith("trace/") || ["state/state.ts", "state/store.ts", "words/page.ts"].includes(name))).toEqual([]);
  expect([...report].filter((name) => page.has(name)).sort()).toEqual([
    "drawing/colour.ts", "drawing/files.ts", "panels/controls.tsx", "panels/settings.tsx", "state/appearance.ts", "state/hash.ts", "state/steps.ts",
    "words/common.ts", "words/numbers.ts", "words/speech.ts",
  ]);
});

test("every module belongs to a page", () => {
  const used = new Set([...closure("main.tsx"), ...closure("typed.tsx"), ...closure("report/main.tsx"), ...closure("widget.ts")]);
  expect(files.filter((name) => !used.has(name))).toEqual(["vite-env.d.ts"]);
});
