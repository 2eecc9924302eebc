// The report's own rules: where a colour scale ends, where an arrow key goes, sentences with elements in them.
import { beforeEach, expect, test } from "vitest";
import { language } from "../src/state/appearance";
import { fromHash } from "../src/state/hash";
import type { Statistic, Survey } from "../src/report/data";
import { headLabel } from "../src/report/data";
import { neighbour } from "../src/report/sections/grid";
import { endsOf, layerShade, shadeOf } from "../src/report/shades";
import { chosenStatistic, FIELDS, scale } from "../src/report/state";
import { counted, say, told } from "../src/report/words";

const statistic = (mean: (number | null)[], signed = false): Statistic => ({ name: "offset", mean, signed }) as Statistic;

/** Layers 2 and 5 with heads 0, 1 and 4; layer 5 lacks head 1. */
const survey = { layers: [2, 5], heads: [0, 1, 4], named: [0, 1, 2, 3, 5], statistics: [statistic([1, 2, 3, 4, null, 5])] } as unknown as Survey;

beforeEach(() => {
  language.value = "en";
  scale.value = "zero";
});

test("colours begin at 0, or at the lowest head; signed numbers lie around 0; no numbers, no scale", () => {
  expect(endsOf(statistic([2, null, 5]))).toEqual({ low: 0, high: 5 });
  expect(endsOf(statistic([-3, null, 1], true))).toEqual({ low: -3, high: 3 });
  scale.value = "range";
  expect(endsOf(statistic([2, null, 5]))).toEqual({ low: 2, high: 5 });
  expect(endsOf(statistic([-3, null, 1], true))).toEqual({ low: -3, high: 3 });
  expect(endsOf(statistic([null, null]))).toBeNull();
});

test("shades are the page's maps by day and by night, with text that can be read", () => {
  expect(shadeOf(5, { low: 0, high: 5 }, false)).toEqual({ "--day": "rgb(19 34 61)", "--dayink": "#fff", "--night": "rgb(230 243 255)", "--nightink": "#000" });
  expect(shadeOf(0, { low: -3, high: 3 }, true)["--night"]).toBe("rgb(16 19 24)");
  expect(shadeOf(2, { low: 2, high: 2 }, false)).toEqual(shadeOf(1, { low: 0, high: 2 }, false));
  expect(layerShade(3, 4)).toEqual(shadeOf(1, { low: 0, high: 1 }, false));
  expect(layerShade(0, 1)).toEqual(shadeOf(1, { low: 0, high: 4 }, false));
});

test("arrow keys go over the heads that are not there, and stop at the edge", () => {
  expect(neighbour(survey, 3, [0, 1])).toBe(5);
  expect(neighbour(survey, 5, [0, -1])).toBe(3);
  expect(neighbour(survey, 1, [1, 0])).toBeNull();
  expect(neighbour(survey, 2, [0, 1])).toBeNull();
  expect(neighbour(survey, 0, [-1, 0])).toBeNull();
});

test("a head is called by its numbers in the model, a statistic by its name", () => {
  expect(headLabel(survey, 5)).toBe("5.4");
  fromHash(FIELDS, "#by=unheard");
  expect(chosenStatistic(survey)).toBe(survey.statistics[0]);
});

test("sentences take elements, and what an element says is not read for braces", () => {
  expect(told("a {x} b {y}{z}", { x: "{y}", y: 2 }).join("|")).toBe("a |{y}| b |2||{z}|");
  expect(told(say("over"), { model: "m", corpus: "c" }).join("")).toBe("m over c");
  expect([counted("documents", 1), counted("documents", 2)]).toEqual(["document", "documents"]);
});

test("one of a thing is one thing", () => {
  expect([say("n_windows", { n: 1 }), say("n_windows", { n: 21 }), say("tokens", { n: "1" })]).toEqual(["1 window", "21 windows", "1 token"]);
  expect(say("layers_heads", { layers: 1, heads: 1 })).toBe("1 layer × 1 head");
  expect(say("layers_heads", { layers: 24, heads: 1 })).toBe("24 layers × 1 head");
  expect(say("layers_heads")).toBe("{layers} layers × {heads} heads");
});
