// The report's words in the reader's language; names, units and meanings of statistics come with the survey.
import type { ComponentChildren } from "preact";
import { common } from "../../words/common";
import { LANGUAGES, speaker } from "../../words/speech";
import { report } from "./report";

export type Word = keyof typeof report | keyof typeof common;
const words = { ...common, ...report };
export const say = speaker<Word>((word, language) => words[word][Object.keys(LANGUAGES).indexOf(language)]);

type Counted = { [W in Word]: `${W}_one` extends Word ? W : never }[Word];

/** The singular or plural of a word. */
export const counted = (word: Counted, n: number, parts: Record<string, string | number> = {}): string =>
  say(n === 1 ? `${word}_one` : word, parts);

/** A sentence in which the names in braces are replaced by elements. */
export const told = (sentence: string, parts: Record<string, ComponentChildren>): ComponentChildren[] =>
  sentence.split(/(\{\w+\})/).map((part) => parts[part.slice(1, -1)] ?? part);
