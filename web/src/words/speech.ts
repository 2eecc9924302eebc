// Lookup of words in the reader's language, with quoted text within sentences.
import { computed, effect } from "@preact/signals";
import { language } from "../state/appearance";

export const LANGUAGES = { en: "English", ja: "日本語", zh: "中文" } as const;
export type Language = keyof typeof LANGUAGES;
/** A word in each language, in the order of LANGUAGES. */
export type Said = readonly [en: string, ja: string, zh: string];
export type Parts = Record<string, string | number>;

/** The chosen language, otherwise the first of the browser's languages that the page has. */
export const spoken = computed<Language>(() => {
  if (language.value in LANGUAGES) return language.value as Language;
  for (const wanted of navigator.languages ?? []) {
    const short = wanted.slice(0, 2);
    if (short in LANGUAGES) return short as Language;
  }
  return "en";
});

/** Set the document's language to the reader's, for fonts and screen readers. */
export function followLanguage(): void {
  effect(() => { document.documentElement.lang = spoken.value; });
}

/** Parts that are untrusted text: they are isolated in direction, and cut if they are long. */
const QUOTED = new Set(["token", "text"]);
const LONGEST = 20;
let segmenter: Intl.Segmenter | null = null;

/** Grapheme clusters: a letter with its accents, or a family of emoji, is one. */
export function letters(text: string): string[] {
  segmenter ??= new Intl.Segmenter();
  return Array.from(segmenter.segment(text), ({ segment }) => segment);
}

/** A long text's beginning. */
export function cut(text: string): string {
  const all = text.length > LONGEST ? letters(text) : [];
  return all.length > LONGEST ? `${all.slice(0, LONGEST).join("")}…` : text;
}

/** Untrusted text among other text: its direction stays its own. */
export const isolated = (text: string): string => `\u2068${text}\u2069`;

/** From the left to the right, wherever it is shown: a tooltip has its element's direction. */
export const leftToRight = (text: string): string => `\u2066${text}\u2069`;

/** A function that returns a word in the reader's language, with the names in braces replaced by parts: “{n} heads” is “1 head”. */
export function speaker<Word extends string>(text: (word: Word, language: Language) => string): (word: Word, parts?: Parts) => string {
  return (word, parts = {}) =>
    text(word, spoken.value).replace(/\{(\w+)\}((?: other| near-uniform)? \w{3,})s\b/g, (whole, name: string, thing: string) => (String(parts[name]) === "1" ? 1 + thing : whole))
      .replace(/\{(\w+)\}/g, (whole, name: string) => {
        const part = parts[name];
        return part === undefined ? whole : QUOTED.has(name) ? isolated(cut(String(part))) : String(part);
      });
}
