// How words are said: the reader's language, and somebody's text quoted within a sentence.
import { computed, effect } from "@preact/signals";
import { language } from "../appearance";

export const LANGUAGES = { en: "English", ja: "日本語", zh: "中文" } as const;
export type Language = keyof typeof LANGUAGES;
export type Parts = Record<string, string | number>;

/** The one that was chosen, else the first of the browser's that there are words in. */
export const spoken = computed<Language>(() => {
  if (language.value in LANGUAGES) return language.value as Language;
  for (const wanted of navigator.languages ?? []) {
    const short = wanted.slice(0, 2);
    if (short in LANGUAGES) return short as Language;
  }
  return "en";
});

/** Keep the document's language at the reader's: fonts and screen readers go by it. */
export function followLanguage(): void {
  effect(() => { document.documentElement.lang = spoken.value; });
}

/** Parts that are somebody's text: they keep their own direction, and are cut where they would drown the sentence. */
const QUOTED = new Set(["token", "text"]);
const LONGEST = 20;
let segmenter: Intl.Segmenter | null = null;

/** Characters as readers know them: a letter and its accents, a family of emoji, are one. */
export function letters(text: string): string[] {
  segmenter ??= new Intl.Segmenter();
  return Array.from(segmenter.segment(text), ({ segment }) => segment);
}

function quoted(text: string): string {
  const all = text.length > LONGEST ? letters(text) : [];
  return `\u2068${all.length > LONGEST ? `${all.slice(0, LONGEST).join("")}…` : text}\u2069`;
}

/** A function that says a word of these tables in the reader's language, its parts put in for the names in braces. */
export function speaker<Word extends string>(tables: Record<Language, Record<Word, string>>): (word: Word, parts?: Parts) => string {
  return (word, parts = {}) =>
    tables[spoken.value][word].replace(/\{(\w+)\}/g, (whole, name: string) => {
      const part = parts[name];
      return part === undefined ? whole : QUOTED.has(name) ? quoted(String(part)) : String(part);
    });
}
