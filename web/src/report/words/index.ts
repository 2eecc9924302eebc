// The report's words in the reader's language; names, units and meanings of statistics come with the survey.
import type { ComponentChildren } from "preact";
import { common } from "../../words/common";
import { speaker } from "../../words/speech";
import { en, type ReportWord } from "./en";
import { ja } from "./ja";
import { zh } from "./zh";

export const report = { en, ja, zh };

export type Word = ReportWord | keyof typeof common.en;
const tables = { en: { ...common.en, ...en }, ja: { ...common.ja, ...ja }, zh: { ...common.zh, ...zh } };
export const say = speaker<Word>((language) => tables[language]);

type Counted = { [W in Word]: `${W}_one` extends Word ? W : never }[Word];

/** The singular or plural of a word. */
export const counted = (word: Counted, n: number, parts: Record<string, string | number> = {}): string =>
  say(n === 1 ? `${word}_one` : word, parts);

/** A sentence in which the names in braces are replaced by elements. */
export const told = (sentence: string, parts: Record<string, ComponentChildren>): ComponentChildren[] =>
  sentence.split(/(\{\w+\})/).map((part) => parts[part.slice(1, -1)] ?? part);
