// The page's words in the reader's language: data beside the page's code.
import type { ComponentChildren } from "preact";
import type { common } from "./common";
import type { page } from "./page";
import { speaker, type Language, type Parts } from "./speech";

export { count, number, percent } from "./numbers";
export { cut, isolated, LANGUAGES, leftToRight, letters, spoken } from "./speech";

export type Word = keyof typeof page | keyof typeof common;

let tables: Record<Language, Record<Word, string>> | null = null;

/** Every language's words, as Python embeds them (`words.json` of the build). */
const read = () => (tables ??= JSON.parse(document.getElementById("hs-words")!.textContent!) as NonNullable<typeof tables>);

export const say = speaker<Word>((word, language) => read()[language][word]);

export const isWord = (name: string): name is Word => name in read().en;

/** A sentence in which the names in braces are replaced by elements, other parts by what `say` makes of them. */
export const tell = (word: Word, parts: Record<string, ComponentChildren>, plain: Parts = {}): ComponentChildren[] =>
  say(word, plain).split(/(\{\w+\})/).map((part) => parts[part.slice(1, -1)] ?? part);
