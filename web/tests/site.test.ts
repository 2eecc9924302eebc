// The site's own rules: which words of a line are drawn, how labels read, how the table sorts and filters, where links lead.
import { beforeEach, expect, test } from "vitest";
import { language } from "../src/state/appearance";
import type { Label, Line, Survey } from "../src/report/data";
import { fitted, type Item } from "../src/report/fit";
import { byGroup, groupOf, shortOf, titleOf, type Group } from "../src/report/kinds";
import { headHref, homeHref } from "../src/report/links";
import { formsOf } from "../src/report/sections/grid";
import { placeOf, short, targetOf } from "../src/report/sections/lines";
import { median, rankOf } from "../src/report/sections/ranks";
import { columnsOf, rowsOf } from "../src/report/sections/table";
import { group, wanted } from "../src/report/state";

const said = (en: string, ja = en) => ({ en, ja, zh: en });
const label = (name: string, kind: string, score: number | null, baseline: number | null): Label =>
  ({ label: name, kind, says: said(name), short: said(name), score, baseline }) as unknown as Label;
const VERB = { ...label("its verb (from the object)", "syntax", 0.7, 0.4), says: said("its verb (from the object)", "その動詞（目的語から）") };
const survey = {
  layers: [0, 1], heads: [0, 1], named: [0, 1, 2, 3],
  statistics: [{ name: "entropy", mean: [3, 1, null, 2] }],
  labels: [
    label("the previous word", "position", 0.5, 0.1), VERB, label("none", "none", null, null), label("the next word", "position", 0.9, 0.1),
  ],
} as unknown as Survey;

beforeEach(() => { language.value = "en"; });

const text = (items: Item[]): string => items.map((item) => ("word" in item ? item.word : `(${item.skip})`)).join(" ");

test("a line shows what fits, and both words of its pair whole; the middle is left out if need be", () => {
  const widths = Array.from({ length: 12 }, () => 10);
  const room = { widths, left: 35, right: 45, mark: 10 };
  expect(text(fitted(6, 5, null, room).before)).toBe("5 4 3 2");
  expect(text(fitted(6, 5, null, room).after)).toBe("7 8 9 10");
  expect(text(fitted(6, 3, null, { ...room, left: 30 }).before)).toBe("5 4 3");
  // Room for 35: the key 10, the mark 10, one word more.
  expect(text(fitted(6, 1, null, room).before)).toBe("5 (3) 1 0");
  expect(text(fitted(6, 11, null, { ...room, right: 55 }).after)).toBe("7 (2) 10 11");
  expect(text(fitted(6, 0, null, { ...room, left: 1000 }).before)).toBe("5 4 3 2 1 0");
});

test("words left out in the data stay left out, and are counted", () => {
  const room = { widths: Array.from({ length: 8 }, () => 10), left: 1000, right: 1000, mark: 10 };
  expect(text(fitted(6, 1, [3, 40], room).before)).toBe("5 4 3 (40) 2 1 0");
  expect(text(fitted(6, 5, [3, 40], room).before)).toBe("5 4 3");
  expect(text(fitted(1, 6, [4, 7], { ...room, right: 40 }).after)).toBe("2 (10) 6");
});

test("every word is drawn once or counted once, whatever the room", () => {
  for (let left = 5; left < 130; left += 5) {
    const items = fitted(9, 1, [4, 3], { widths: [10, 12, 8, 20, 9, 14, 7, 11, 10, 10], left, right: 40, mark: 12 }).before;
    const key = items.findIndex((item) => "word" in item && item.word === 1);
    expect(key).toBeGreaterThanOrEqual(0);
    const total = items.slice(0, key + 1).reduce((sum, item) => sum + ("word" in item ? 1 : item.skip), 0);
    expect(total).toBe(8 + 3);
  }
});

test("labels read as sentences; a label of an unknown kind stands in the last group", () => {
  expect([titleOf(VERB), shortOf(VERB)]).toEqual(["Its verb (from the object)", "its verb (from the object)"]);
  expect([groupOf(VERB), groupOf(label("new", "strange", 1, 0))]).toEqual(["syntax", "none"]);
  language.value = "ja";
  expect(titleOf(VERB)).toBe("その動詞（目的語から）");
});

test("a label becomes shorter and never says something else", () => {
  const forms = (name: string, kind = "syntax"): string[] => formsOf({ ...label(name, kind, 1, 0), clauses: 2 }).map(([clause, more]) => `${clause}${more && " +"}`);
  expect(forms("function words: a mark (. ? !), at most 6 words away")).toEqual([
    "function words: a mark (. ? !), at most 6 words away +", "a mark (. ? !), at most 6 words away +", "a mark, at most 6 words away +", "a mark +", "a mark", "",
  ]);
  expect(forms("a noun, name or pronoun", "class")).toEqual(["a noun, name or pronoun +", "a noun, name or pronoun", ""]);
  expect(forms("words such as days, years, weeks", "learned")).toEqual([
    "words such as days, years, weeks +", "words such as days, years +", "words such as days +", "words such as days", "",
  ]);
});

test("groups are sorted by what is gained over the baseline", () => {
  expect(byGroup(survey).get("position")).toEqual([3, 0]);
  expect(byGroup(survey).get("syntax")).toEqual([1]);
});

test("the table sorts, empty cells last, and filters by kind and by words", () => {
  const columns = columnsOf(survey);
  const cells = (by: string, up: boolean, kind: Group | "" = "", find = ""): number[] => {
    [group.value, wanted.value] = [kind, find];
    return rowsOf(survey, columns, by, up).map(({ cell }) => cell);
  };
  expect(cells("head", true)).toEqual([0, 1, 2, 3]);
  expect(cells("score", false)).toEqual([3, 1, 0, 2]);
  expect(cells("entropy", true)).toEqual([1, 3, 0, 2]);
  expect(cells("head", true, "position")).toEqual([0, 3]);
  expect(cells("head", true, "", "VERB")).toEqual([1]);
  expect(cells("head", true, "", "1.")).toEqual([2, 3]);
  expect(cells("head", true, "", "0.1")).toEqual([1]);
});

test("links lead to files beside each other", () => {
  language.value = "";
  expect([headHref(survey, 3), homeHref()]).toEqual(["head-1-1.html", "index.html"]);
  language.value = "zh";
  expect([headHref(survey, 3), homeHref()]).toEqual(["head-1-1.html#lang=zh", "index.html#lang=zh"]);
});

test("a random word's arc goes to a special token that gets more than every word", () => {
  const line = { best: false, weight: 0.2, first: 0.5, sep: 0.6, query: 3, key: 1 } as Line;
  expect([targetOf(line), targetOf({ ...line, sep: 0.1 }), targetOf({ ...line, weight: 0.7 }), targetOf({ ...line, best: true })]).toEqual(["sep", "first", "key", "key"]);
  expect([placeOf([{ ...line, best: true }]), placeOf([{ ...line, best: true, key: 5 }])]).toEqual([0.62, 0.3]);
  expect([short(0.945), short(0.999)]).toEqual([".94", "1.0"]);
});

test("ranks count heads above, medians lie in the middle", () => {
  expect([rankOf([1, null, 3, 2], 3), rankOf([1, 1], 1)]).toEqual([2, 1]);
  expect([median([3, null, 1]), median([]), median([5, 1, 2])]).toEqual([2, null, 2]);
});
