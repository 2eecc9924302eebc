// The page's words in the reader's language: English is part of the page, other languages are data beside it.
import type { ComponentChildren } from "preact";
import { common } from "./common";
import { en as english, type Word as PageWord } from "./en";
import { speaker, type Language, type Parts } from "./speech";

export { count, number, percent } from "./numbers";
export { cut, LANGUAGES, letters, spoken } from "./speech";

const en = { ...common.en, ...english };
export type Word = PageWord | keyof typeof common.en;
type Table = Record<Word, string>;

/** The words of a language, in the order of the English ones, as Python embeds them (`words.json` of the build). */
function read(language: Language): Table {
  const lists = JSON.parse(document.getElementById("hs-words")!.textContent!) as Record<string, string[]>;
  return Object.fromEntries(Object.keys(common.en).concat(Object.keys(english)).map((name, n) => [name, lists[language][n]])) as Table;
}

const tables: Partial<Record<Language, Table>> = { en };
export const say = speaker<Word>((language) => (tables[language] ??= read(language)));

export const isWord = (name: string): name is Word => name in en;

/** A sentence in which the names in braces are replaced by elements, other parts by what `say` makes of them. */
export const tell = (word: Word, parts: Record<string, ComponentChildren>, plain: Parts = {}): ComponentChildren[] =>
  say(word, plain).split(/(\{\w+\})/).map((part) => parts[part.slice(1, -1)] ?? part);
