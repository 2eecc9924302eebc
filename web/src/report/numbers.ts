// Numbers that the grid is coloured by and heads are ranked by: the statistics, and those of labels and effects.
import type { Statistic, Survey } from "./data";
import { rounded, written } from "../words/numbers";
import { spoken } from "../words/speech";
import { say, type Word } from "./words";

/** A statistic's name in the reader's language. */
export const called = ({ name, names }: Statistic): string => names[spoken.value] ?? name;

/** A change with two digits that say something: 0.045, 0.0009. */
export const small = (value: number | null): string => (value === null ? "–" : written(Math.abs(value) >= 0.01 || value === 0 ? value.toFixed(3) : value.toPrecision(2)));

/** A head's number as it is written: effects are small. */
export const figure = (name: string, value: number | null): string => (name === "effect" ? small(value) : rounded(value));

/** A statistic made of one number for each head. */
function derived(name: Word, meaning: string, unit: string, mean: (number | null)[], signed = false): Statistic {
  const none = {};
  return { name, names: { [spoken.value]: say(name) }, meaning, unit, short: "", signed, mean, deviation: none, min: none, q05: none, q25: none, q50: none, q75: none, q95: none, max: none, count: none };
}

/** The survey's statistics, and behind them the label's score, its coverage, and the effect. */
export function numbersOf(survey: Survey): Statistic[] {
  const { statistics, labels, effects } = survey;
  return [
    ...statistics,
    ...(labels ? [
      derived("label_score", say("by_score"), "0 – 1", labels.map((label) => label?.score ?? null)),
      derived("label_coverage", say("by_coverage"), "0 – 100", labels.map((label) => label?.coverage ?? null)),
    ] : []),
    ...(effects ? [derived("effect", effects.output, effects.unit, effects.change, effects.change.some((value) => value !== null && value < 0))] : []),
  ];
}
