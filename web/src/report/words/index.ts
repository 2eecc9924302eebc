// The report's words in the reader's language; names, units and meanings of statistics come with the survey.
import type { ComponentChildren } from "preact";
import { common } from "../../words/common";
import { LANGUAGES, speaker, spoken } from "../../words/speech";
import type { Survey } from "../data";
import { report } from "./report";

export type Word = keyof typeof report | keyof typeof common;
const words = { ...common, ...report };
export const say = speaker<Word>((word, language) => words[word][Object.keys(LANGUAGES).indexOf(language)]);

type Counted = { [W in Word]: `${W}_one` extends Word ? W : never }[Word];

/** The survey's words, set once, when the page opens. */
let ofSurvey: Survey["words"] = {};
export const takeWords = ({ words }: Survey): void => { ofSurvey = words; };

/** A text of the survey, which is in English, in the reader's language if the survey has that. */
export const translated = (text: string): string => ofSurvey[text]?.[Object.keys(LANGUAGES).indexOf(spoken.value) - 1] ?? text;

/** The language of what `translated` returns, where it isn't the page's. */
export const tongueOf = (text: string): string | undefined => (translated(text) === text ? "en" : undefined);

/** The singular or plural of a word. */
export const counted = (word: Counted, n: number, parts: Record<string, string | number> = {}): string =>
  say(n === 1 ? `${word}_one` : word, parts);

/** A sentence in which the names in braces are replaced by elements. */
export const told = (sentence: string, parts: Record<string, ComponentChildren>): ComponentChildren[] =>
  sentence.split(/(\{\w+\})/).map((part) => parts[part.slice(1, -1)] ?? part);
