// Alignment, differences, means and ink against numbers that Python wrote; names that say what differs.
import { expect, test } from "vitest";
import { align } from "../src/text/align";
import { inkOf } from "../src/text/ink";
import { distinct } from "../src/text/naming";
import type { Picture } from "../src/drawing/pictures";
import { direction, prose } from "../src/text/prose";
import { joinCuts, makeShown, regroup, type Label } from "../src/text/shown";
import { tile, viewRows } from "../src/trace/cells";
import { difference } from "../src/trace/difference";
import { lookedAtBy, looksAt } from "../src/trace/profile";
import type { Axis } from "../src/trace/trace";
import { held, info, labelOf, layers, S, weights, whole } from "./fixture";

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

test("equal tokens are aligned, one replaces another, more stand across a gap", () => {
  expect(paired("abcd", "abxd")).toBe("aa bb cx dd");
  expect(paired("abd", "abxyd")).toBe("aa bb -x -y dd");
  expect(paired("abxyd", "abd")).toBe("aa bb x- y- dd");
  expect(paired("", "ab")).toBe("-a -b");
  expect(paired("abc", "abc")).toBe("aa bb cc");
  expect(paired("acb", "dce")).toBe("ad cc be");
  expect(paired("abcd", "axyd")).toBe("aa b- c- -x -y dd");
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

test("the difference of words that stand for the same is B - A, words of one side together; and what moves", () => {
  const pairs = [[0, 1], [2, 4], [5, 6], [6, 7], [7, 0]] as const;
  const side = (n: 0 | 1, alone: number[][]) => ({ rows: regroup(whole.rows, pairs.map((pair) => [pair[n]])), columns: regroup(whole.columns, [...pairs.map((pair) => [pair[n]]), ...alone]), renormalise: false });
  const rest = ([0, 1] as const).map((n) => Array.from({ length: S }, (_, place) => place).filter((place) => !pairs.some((pair) => pair[n] === place)));
  const [one, other] = [side(0, [rest[0], []]), side(1, [[], rest[1]])];
  for (const layer of layers) {
    const [a, b] = [weights[layer][0], weights[0][1]];
    const sum = (cells: number[], row: number, places: number[]): number => places.reduce((total, place) => total + cells[row * S + place], 0);
    const expected = pairs.map(([i, k]) => [...pairs.map(([j, l]) => b[k * S + l] - a[i * S + j]), -sum(a, i, rest[0]), sum(b, k, rest[1])]);
    const sides = [{ heads: held.head(layer, 0), view: one, normed: false }, { heads: held.head(0, 1), view: other, normed: false }] as const;
    const found = difference(...sides, [0, 5, 0, 7], 5, 7);
    close(found.data, expected.flat());
    const totals = pairs.map((pair) => [a, b].map((cells, n) => sum(cells, pair[n], [...Array(S).keys()])));
    // rows add up to 0, but for what goes to a sink, which moves, too; a query without keys is on neither side
    expected.forEach((row, n) => expect(row.reduce((x, y) => x + y)).toBeCloseTo(totals[n][1] - totals[n][0], 5));
    const seen = expected.filter((_, n) => Math.min(...totals[n]) > 0);
    const moves = seen.map((row) => (row.reduce((x, y) => x + Math.abs(y), 0) + Math.abs(row.reduce((x, y) => x + y))) / 2);
    expect(found.moved).toBeCloseTo(moves.reduce((x, y) => x + y) / seen.length, 5);
    close(difference(...sides, [2, 5, 1, 3], 3, 2).data, expected.slice(2).flatMap((row) => row.slice(1, 3)));
    const pooled = difference(...sides, [0, 5, 0, 7], 1, 1).data[0];
    expect(Math.abs(pooled)).toBeCloseTo(Math.max(...expected.flat().map(Math.abs)), 5);
  }
});

test("as many words as there are tokens, in another order, are no plain text", () => {
  const turned = [2, 0, 1, ...Array.from({ length: S - 3 }, (_, n) => n + 3)];
  const view = { rows: whole.rows, columns: regroup(whole.columns, turned.map((place) => [place])), renormalise: false };
  close(viewRows(held.head(0, 0), view, 3, 4, 0, S), turned.map((place) => weights[0][0][3 * S + place]));
});

test("the mean of heads is the mean of their weights, row, tile and whole", () => {
  const members = [[0, 0], [0, 3], [1, 2]] as const;
  const heads = members.map(([layer, head]) => held.head(layer, head));
  const expected = weights[0][0].map((_, n) => members.reduce((sum, [layer, head]) => sum + weights[layer][head][n], 0) / 3);
  close(viewRows(heads, whole, 0, S, 0, S), expected);
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
  const axis = {
    tokens: ["[CLS]", "a", "wai", "##st", "-", "[SEP]", "so", "[SEP]"], special: [true, false, false, false, false, true, false, true],
    spans: [null, [0, 1], [4, 7], [7, 9], [9, 10], null, [0, 2], null],
  } as unknown as Axis;
  const labels = ["[CLS]", "a", "wai", "st", "-", "[SEP]", "so", "[SEP]"].map((text, n) => labelOf(text, [n], { special: axis.special[n], continues: n === 3 }));
  const text = (pieces: { before: string; text: string }[]): string => pieces.map((piece) => piece.before + piece.text).join("");
  expect(text(prose(labels, { ...axis, texts: ["A\n\n WAIst-", "So"] }))).toBe("[CLS] A\nWAIst- [SEP] So [SEP]");
  expect(text(prose([labels[1], labelOf("waist", [2, 3]), labels[4]], { ...axis, texts: ["A   WAIst-", "So"] }))).toBe("A WAIst-");
  expect(text(prose(labels, { ...axis, spans: [], texts: ["A  WAIst-", null] }))).toBe("[CLS] a waist - [SEP] so [SEP]");
});

test("a text from right to left: its direction, and letters that a cut parts", () => {
  const label = (text: string, token: number, continues = false): Label => labelOf(text, [token], { special: text.startsWith("<"), continues });
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
