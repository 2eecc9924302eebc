// Every language says the same things, with the same parts in braces. Colours are what they promise.
import { readdirSync, readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { language } from "../src/state/appearance";
import { common } from "../src/words/common";
import { page } from "../src/words/page";
import { report } from "../src/report/words/report";
import { speaker } from "../src/words/speech";
import { count, number, percent, rounded } from "../src/words/numbers";
import { coloursOf, divergingAt, inkOn, luminance, onScale, paint, SIGN, sequentialAt } from "../src/drawing/colour";

const parts = (text: string): string[] => [...new Set(text.match(/\{\w+\}/g) ?? [])].sort();

for (const [kind, table] of Object.entries({ page, common, report })) {
  test(`${kind}: every language has every part`, () => {
    for (const [word, [english, ...others]] of Object.entries(table)) for (const text of others) expect(parts(text), word).toEqual(parts(english));
  });
}

test("what stands after a number and loses its s at 1 is a thing", () => {
  const things = Object.values({ ...page, ...common, ...report }).flatMap(([text]) => [...text.matchAll(/\{(?!head\})\w+\}((?: other| near-uniform)? \w{3,})s\b/g)].map(([, thing]) => thing));
  expect([...new Set(things)].sort()).toEqual([
    " bit", " byte", " cell", " clause", " document", " file", " head", " key", " layer", " nat", " near-uniform head", " number", " other word", " parameter", " product", " token",
    " window", " word",
  ]);
});

test("a thing loses its s after the number 1, and a head's name is not a number", () => {
  language.value = "en";
  const say = speaker((word: string) => word);
  expect([1, "1", 2, "1.0", "1.5"].map((n) => say("{n} heads, {n} looks", { n }))).toEqual([
    "1 head, 1 look", "1 head, 1 look", "2 heads, 2 looks", "1.0 heads, 1.0 looks", "1.5 heads, 1.5 looks",
  ]);
  expect([1, 2].map((n) => say("{n} near-uniform heads", { n }))).toEqual(["1 near-uniform head", "2 near-uniform heads"]);
});

test("no word stands in two tables of a page", () => {
  for (const table of [page, report]) expect(Object.keys(table).filter((word) => word in common)).toEqual([]);
});

test("every word is said", () => {
  const all = readdirSync("src", { recursive: true, encoding: "utf-8" }).filter((file) => /\.tsx?$/.test(file) && !/words\/(page|common|report)\.ts$/.test(file));
  for (const [own, table] of [[true, report], [false, page]] as const) {
    const source = all.filter((file) => file.startsWith("report/") === own).map((file) => readFileSync(`src/${file}`, "utf-8")).join("");
    const begin = [...source.matchAll(/`([a-z]+_)?\$\{[^`}]*\}(_one)?`/g)].filter(([, first, last]) => first || last);
    const isSaid = (word: string): boolean => new RegExp(`(say|tell)\\([^)]*"${word}"|"${word}"(?= :|[\\],)}]|;)`).test(source) || begin.some(([, first = "", last = ""]) => word.startsWith(first) && word.endsWith(last));
    expect(Object.keys(table).filter((word) => !isSaid(word))).toEqual([]);
  }
});

test("numbers are read as people read them", () => {
  language.value = "en";
  expect([0.5, -12.345, 123.45, 4567.8, null].map(rounded)).toEqual(["0.500", "−12.35", "123.5", "4568", "–"]);
  expect([0.1234, -123.45, -0.0001, -Infinity, NaN].map((x) => number(x))).toEqual(["0.123", "−123.5", "−0.00010", "−∞", "–"]);
  expect([percent(0.05), percent(0.5), percent(-0.027), percent(-0.35), count(109482240)]).toEqual(["5.0%", "50%", "−2.7%", "−35%", "109,482,240"]);
});

const grey = ([r, g, b]: readonly number[]): number => 0.2126 * r + 0.7152 * g + 0.0722 * b;

for (const dark of [false, true]) {
  test(`the ${dark ? "dark" : "light"} map grows steadily in grey`, () => {
    const map = coloursOf(false, dark);
    for (let n = 8; n < 256; n += 8) {
      const step = grey(map[n]) - grey(map[n - 8]);
      expect(dark ? step : -step).toBeGreaterThan(0);
    }
  });
}

const style = readFileSync(new URL("../src/base.css", import.meta.url), "utf-8");
const hex = ([r, g, b]: readonly number[]): string => `#${[r, g, b].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;

for (const dark of [false, true]) {
  test(`more is green and less is purple, on canvases as in the style sheet, and 0 is the pane's own colour, ${dark ? "dark" : "light"}`, () => {
    const { more, less } = SIGN[dark ? "dark" : "light"];
    const named = (name: string): string => [...style.matchAll(new RegExp(`--${name}: (#\\w{6});`, "g"))][Number(dark)][1];
    expect([hex(more), hex(less)]).toEqual([named("more"), named("less")]);
    const [ends, zero] = [[1, -1].map((t) => divergingAt(t, dark)), divergingAt(0, dark)];
    expect(ends).toEqual([more, less]);
    expect([hex(zero), hex(sequentialAt(0, dark))]).toEqual([named("panel"), named("panel")]);
    expect(more[1]).toBeGreaterThan(Math.max(more[0], more[2]));
    expect(less[1]).toBeLessThan(Math.min(less[0], less[2]));
  });
}

test("pixels are the map's colours, on every scale, signed or not", () => {
  const numbers = Float32Array.from([0, 0.0001, 0.01, 0.3, 1, 7]);
  for (const scale of ["sqrt", "linear", "log"] as const) {
    const [plain, signed] = [paint(numbers, 1, scale, true, false), paint(numbers.map((x) => -x), 1, scale, true, true)];
    numbers.forEach((x, n) => {
      const shade = Math.round(255 * onScale(x, 1, scale));
      expect([...plain.subarray(4 * n, 4 * n + 4)]).toEqual([...coloursOf(false, true)[shade], 255]);
      expect([...signed.subarray(4 * n, 4 * n + 4)]).toEqual([...coloursOf(true, true)[255 - shade], 255]);
    });
  }
});

test("the maps' colours stay what they are", () => {
  const at = (signed: boolean, dark: boolean, places: number[]) => places.map((n) => coloursOf(signed, dark)[n]);
  expect(at(false, false, [0, 64, 128, 255])).toEqual([[255, 255, 255], [216, 231, 248], [132, 178, 231], [19, 34, 61]]);
  expect(at(false, true, [0, 64, 128, 255])).toEqual([[16, 19, 24], [27, 46, 74], [46, 98, 169], [230, 243, 255]]);
  expect(at(true, false, [0, 128, 255, 383, 510])).toEqual([[138, 63, 157], [197, 159, 206], [255, 255, 255], [127, 191, 164], [0, 128, 74]]);
});

test("text on a colour has the contrast that WCAG asks of small text", () => {
  expect([luminance([255, 255, 255]), luminance([0, 0, 0])]).toEqual([1, 0]);
  for (const dark of [false, true]) {
    for (let n = 0; n <= 20; n++) {
      const [ground, ink] = [luminance(sequentialAt(n / 20, dark)), inkOn(sequentialAt(n / 20, dark)) === "#fff" ? 1 : 0];
      expect((Math.max(ground, ink) + 0.05) / (Math.min(ground, ink) + 0.05)).toBeGreaterThan(4.5);
    }
  }
});
