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

export function say(word: Word, parts: Record<string, string | number> = {}): string {
  return TABLES[spoken.value][word].replace(/\{(\w+)\}/g, (whole, name: string) => String(parts[name] ?? whole));
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
