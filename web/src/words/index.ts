// The page's words in the reader's language.
import { computed } from "@preact/signals";
import { language } from "../state";
import { en, type Word } from "./en";
import { ja } from "./ja";
import { zh } from "./zh";

export type { Word };
export const LANGUAGES = { en: "English", ja: "日本語", zh: "中文" } as const;
const TABLES = { en, ja, zh } as const;
type Language = keyof typeof TABLES;

/** The one that was chosen, else the first of the browser's that the page has. */
export const spoken = computed<Language>(() => {
  if (language.value in TABLES) return language.value as Language;
  for (const wanted of navigator.languages ?? []) {
    const short = wanted.slice(0, 2);
    if (short in TABLES) return short as Language;
  }
  return "en";
});

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

export function say(word: Word, parts: Record<string, string | number> = {}): string {
  return TABLES[spoken.value][word].replace(/\{(\w+)\}/g, (whole, name: string) => {
    const part = parts[name];
    return part === undefined ? whole : QUOTED.has(name) ? quoted(String(part)) : String(part);
  });
}

export const count = (n: number): string => n.toLocaleString(spoken.value);

/** A number as it is read beside a picture: enough digits to tell, no more. */
export function number(value: number, digits = 3): string {
  if (!Number.isFinite(value)) return value === -Infinity ? "-∞" : value === Infinity ? "∞" : "–";
  if (value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits) return value.toExponential(1);
  return value.toFixed(Math.abs(value) >= 100 ? 1 : digits);
}

export const percent = (share: number): string => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;

export const isWord = (name: string): name is Word => name in en;
