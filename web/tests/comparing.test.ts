// Alignment, differences, means and ink against numbers that Python wrote; names that say what differs.
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { align } from "../src/align";
import { inkOf } from "../src/ink";
import { distinct } from "../src/naming";
import type { Picture } from "../src/pictures";
import { direction, prose } from "../src/prose";
import { joinCuts, makeShown, type Label } from "../src/shown";
import { entropy, tile, viewRows, wholeHead } from "../src/trace/cells";
import { difference } from "../src/trace/difference";
import { change, sample } from "../src/trace/measures";
import { lookedAtBy, looksAt } from "../src/trace/profile";
import { HeldTrace, type Axis } from "../src/trace/trace";

const held = new HeldTrace(new Uint8Array(readFileSync(new URL("./fixture.safetensors", import.meta.url))));
const { weights } = JSON.parse(readFileSync(new URL("./fixture.json", import.meta.url), "utf8")) as { weights: number[][][] };
const { info } = held;
const S = info.queries.tokens.length;
const whole = makeShown(info, "all", true, false).view;
const layers = [...info.layers.keys()];
const close = (a: ArrayLike<number>, b: ArrayLike<number>): void => {
  expect(a.length).toBe(b.length);
  for (let n = 0; n < a.length; n++) expect(a[n], String(n)).toBeCloseTo(b[n], 5);
};

/** The length of the longest common subsequence, from its definition. */
function common(a: string, b: string): number {
  if (!a || !b) return 0;
  return a[0] === b[0] ? 1 + common(a.slice(1), b.slice(1)) : Math.max(common(a.slice(1), b), common(a, b.slice(1)));
}

const letters = (text: string): string[] => [...text];
const paired = (a: string, b: string): string =>
  ((found) => Array.from(found.a, (i, n) => `${a[i] ?? "-"}${b[found.b[n]] ?? "-"}`).join(" "))(align(letters(a), letters(b)));

test("equal tokens are aligned, as many replace one another, others stand across a gap", () => {
  expect(paired("abcd", "abxd")).toBe("aa bb cx dd");
  expect(paired("abd", "abxyd")).toBe("aa bb -x -y dd");
  expect(paired("abxyd", "abd")).toBe("aa bb x- y- dd");
  expect(paired("", "ab")).toBe("-a -b");
  expect(paired("abc", "abc")).toBe("aa bb cc");
  expect(paired("acb", "dce")).toBe("ad cc be");
});

test("every token once, in order, and as many equal pairs as there can be", () => {
  let seed = 1;
  const next = (): number => (seed = (seed * 16807) % 2147483647);
  for (let round = 0; round < 60; round++) {
    const [a, b] = [0, 1].map(() => Array.from({ length: next() % 10 }, () => "abc"[next() % 3]).join(""));
    const found = align(letters(a), letters(b));
    expect([...found.a].filter((i) => i >= 0)).toEqual([...a].map((_, i) => i));
    expect([...found.b].filter((i) => i >= 0)).toEqual([...b].map((_, i) => i));
    expect(Array.from(found.a).filter((i, n) => i >= 0 && a[i] === b[found.b[n]]).length).toBe(common(a, b));
  }
});

test("thousands of tokens are aligned", () => {
  const a = Array.from({ length: 4000 }, (_, n) => String(n % 997));
  const b = [...a.slice(0, 1000), "new", ...a.slice(1000, 3000), ...a.slice(3003)];
  const found = align(a, b);
  expect(Array.from(found.a).filter((i, n) => i >= 0 && found.b[n] >= 0 && a[i] === b[found.b[n]]).length).toBe(3997);
});

test("the difference of aligned tokens is B - A, and 0 across a gap", () => {
  const rows = { a: Int32Array.from([0, 1, -1, 2, 5, 6, 7]), b: Int32Array.from([1, 2, 3, 4, -1, 6, 0]) };
  const columns = { a: Int32Array.from([3, -1, 4, 5]), b: Int32Array.from([2, 8, 4, -1]) };
  for (const layer of layers) {
    const [a, b] = [weights[layer][0], weights[0][1]];
    const found = difference(
      { heads: held.head(layer, 0), view: whole, normed: false }, { heads: held.head(0, 1), view: whole, normed: false }, { rows, columns }, [0, 7, 0, 4], 7, 4,
    );
    const expected = Array.from(rows.a).flatMap((i, r) => Array.from(columns.a, (j, c) =>
      (i < 0 || j < 0 || rows.b[r] < 0 || columns.b[c] < 0 ? 0 : b[rows.b[r] * S + columns.b[c]] - a[i * S + j])));
    close(found, expected);
    close(difference(
      { heads: held.head(layer, 0), view: whole, normed: false }, { heads: held.head(0, 1), view: whole, normed: false }, { rows, columns }, [2, 6, 1, 3], 4, 2,
    ), [2, 3, 4, 5].flatMap((r) => [1, 2].map((c) => expected[r * 4 + c])));
  }
});

test("a key without a partner counts as changed with all its weight", () => {
  const [a, b] = [weights[0][0], weights[0][1]];
  const keys = { a: Int32Array.from([0, -1, ...Array.from({ length: S - 1 }, (_, n) => n + 1)]), b: Int32Array.from([-1, 0, ...Array.from({ length: S - 1 }, (_, n) => n + 1)]) };
  const rows = [1, 3];
  const found = change(sample(held.head(0, 0), rows), sample(held.head(0, 1), rows), keys);
  const sums = rows.map((i) => a[i * S] + b[i * S] + Array.from({ length: S - 1 }, (_, n) => Math.abs(a[i * S + n + 1] - b[i * S + n + 1])).reduce((x, y) => x + y));
  expect(found).toBeCloseTo((sums[0] + sums[1]) / 4, 5);
});

test("the mean of heads is the mean of their weights, row, tile, whole and entropy", () => {
  const members = [[0, 0], [0, 3], [1, 2]] as const;
  const heads = members.map(([layer, head]) => held.head(layer, head));
  const expected = weights[0][0].map((_, n) => members.reduce((sum, [layer, head]) => sum + weights[layer][head][n], 0) / 3);
  const found = wholeHead(heads, whole, false);
  close(found.data, expected);
  close(found.entropies, Array.from({ length: S }, (_, r) => entropy(expected.slice(r * S, (r + 1) * S))));
  expect(found.strongest).toBeCloseTo(Math.max(...expected), 5);
  close(viewRows(heads, whole, 2, 3, 0, S), expected.slice(2 * S, 3 * S));
  close(tile(heads, whole, [2, 4, 1, 5], 2, 4), [2, 3].flatMap((r) => expected.slice(r * S + 1, r * S + 5)));
});

test("ink: the mean over queries, the sum over keys, from the worker and from a whole picture", () => {
  for (const layer of layers) {
    const cells = weights[layer][1];
    const from = Array.from({ length: S }, (_, j) => (cells[1 * S + j] + cells[4 * S + j] + cells[8 * S + j]) / 3);
    const to = Array.from({ length: S }, (_, i) => cells[i * S + 2] + cells[i * S + 5]);
    close(looksAt(held.head(layer, 1), whole, [1, 4, 8], false), from);
    close(lookedAtBy(held.head(layer, 1), whole, [2, 5], false), to);
    const bare = { ...held.head(layer, 1), lse: null } as never;
    for (let again = 0; again < 2; again++) close(lookedAtBy(bare, whole, [2, 5], false), to);
    const picture = { rows: S, columns: S } as Picture;
    close(inkOf(picture, Float32Array.from(cells), "from", [1, 4, 8]), from);
    close(inkOf(picture, Float32Array.from(cells), "to", [2, 5]), to);
  }
});

test("ink of joined words and without special tokens is the picture's", () => {
  for (const [special, merged] of [[false, false], [true, true], [false, true]]) {
    const { view } = makeShown(info, "all", special, merged);
    const [rows, columns] = [view.rows.starts.length - 1, view.columns.starts.length - 1];
    for (const layer of layers) {
      const cells = viewRows(held.head(layer, 0), view, 0, rows, 0, columns);
      close(lookedAtBy(held.head(layer, 0), view, [1, 3], false), Array.from({ length: rows }, (_, r) => cells[r * columns + 1] + cells[r * columns + 3]));
    }
  }
});

test("a name says what differs, never the equal beginning", () => {
  expect(distinct(["The animal was too tired.", "The animal was too wide."])).toEqual(["… was too tired.", "… was too wide."]);
  expect(distinct(["One two three four five six seven", "One two three x five six seven"])).toEqual(["… two three four five six …", "… two three x five six …"]);
  expect(distinct(["The cat sat.", "Rain fell."])).toEqual(["The cat sat.", "Rain fell."]);
  expect(distinct(["The cat", "The cat"])).toEqual(["The cat", "(2) The cat"]);
  expect(distinct(["✕ 3.1 · A cat sat on a mat.", "A cat sat on a mat."])).toEqual(["✕ 3.1 · A cat sat on a mat.", "A cat sat on a mat."]);
  expect(distinct(["动物没有过街因为它太累", "动物没有过街因为它太宽"])).toEqual(["… 它太累", "… 它太宽"]);
  expect(distinct(["alone"])).toEqual(["alone"]);
});

test("prose is the text as it was written, where the spans are known", () => {
  const label = (text: string, tokens: number[], special = false, continues = false): Label =>
    ({ text, continues, special, segment: 0, title: "", tokens, repeats: null });
  const axis = {
    tokens: ["[CLS]", "a", "wai", "##st", "-", "[SEP]", "so", "[SEP]"], special: [true, false, false, false, false, true, false, true],
    spans: [null, [0, 1], [4, 7], [7, 9], [9, 10], null, [0, 2], null],
  } as unknown as Axis;
  const labels = [label("[CLS]", [0], true), label("a", [1]), label("wai", [2]), label("st", [3], false, true), label("-", [4]), label("[SEP]", [5], true), label("so", [6]), label("[SEP]", [7], true)];
  const text = (pieces: { before: string; text: string }[]): string => pieces.map((piece) => piece.before + piece.text).join("");
  expect(text(prose(labels, { ...axis, texts: ["A\n\n WAIst-", "So"] }))).toBe("[CLS] A\nWAIst- [SEP] So [SEP]");
  expect(text(prose([labels[1], label("waist", [2, 3]), labels[4]], { ...axis, texts: ["A   WAIst-", "So"] }))).toBe("A WAIst-");
  expect(text(prose(labels, { ...axis, spans: [], texts: ["A  WAIst-", null] }))).toBe("[CLS] a waist - [SEP] so [SEP]");
});

test("a text from right to left: its direction, and letters that a cut parts", () => {
  const label = (text: string, token: number, continues = false): Label =>
    ({ text, continues, special: text.startsWith("<"), segment: 0, title: "", tokens: [token], repeats: null });
  expect(["<s> لم", "١ عربي", "12 (עברית) abc", "𞤀"].map((text) => direction(text.split(" ").map((word, n) => label(word, n))))).toEqual(["rtl", "rtl", "rtl", "rtl"]);
  expect(["<s> the لم", "", "1 + 1", "١ a"].map((text) => direction(text.split(" ").map((word, n) => label(word, n))))).toEqual(["ltr", "ltr", "ltr", "ltr"]);
  const joined = (...texts: string[]): string[] => {
    const labels = texts.map((text, n) => label(text, n, n > 0));
    joinCuts(labels, labels);
    return labels.map(({ text }) => text);
  };
  const [before, after] = [(text: string) => `${text}\u200d`, (text: string) => `\u200d${text}`];
  expect(joined("متع", "با")).toEqual([before("متع"), after("با")]);
  expect(joined("يُ", "عب", "ر")).toEqual([before("يُ"), before(after("عب")), after("ر")]);
  // no letter joins to one after ر or ا, to a hamza, to a sign, or over scripts
  for (const texts of [["بر", "يد"], ["متعبا", "ن"], ["ش", "ء"], ["متع", "."], ["em", "bed"], ["疲れ", "ていた"]]) expect(joined(...texts)).toEqual(texts);
});
