// A page's state as the hash of a URL, so that a link shows the same picture.
import { batch, type Signal } from "@preact/signals";
import { language, theme, THEMES } from "./appearance";

export interface Field<T> {
  signal: Signal<T>;
  first: T;
  read(text: string): T | undefined;
  write(value: T): string;
}

export const whole = (text: string): number | undefined => (/^\d{1,6}$/.test(text) ? Number(text) : undefined);
export const field = <T,>(target: Signal<T>, read: (text: string) => T | undefined, write: (value: T) => string = String): Field<T> => ({
  signal: target, first: target.peek(), read, write,
});
export const among = <T extends string>(target: Signal<T>, names: readonly T[]): Field<T> =>
  field(target, (text) => names.find((name) => name === text));
export const flag = (target: Signal<boolean>): Field<boolean> => field(target, (text) => text === "1", (on) => (on ? "1" : "0"));
/** So many letters, without what is no letter by itself: half of a pair of surrogates can't stand in an address. */
export const text = (target: Signal<string>, most: number): Field<string> => {
  const part = (all: string): string => all.slice(0, most).replace(/\p{Cs}/gu, "");
  return field(target, part, part);
};
export const share = (target: Signal<number>): Field<number> =>
  field(target, (text) => { const value = Number(text); return value >= 0 && value <= 1 ? value : undefined; });

/** A hash that says nothing but how the page looks to its reader. */
export const isFresh = (hash: string): boolean => [...new URLSearchParams(hash.replace(/^#/, "")).keys()].every((name) => name in APPEARANCE);

/** Whole numbers with dots between, each once, in order; `none` stands for none of them. */
export const wholes = (held: Signal<readonly number[]>, none: readonly number[]): Field<readonly number[]> => ({
  ...field(
    held,
    (text) => (/^\d{1,6}(\.\d{1,6}){0,4095}$/.test(text) ? [...new Set(text.split(".").map(Number))].sort((a, b) => a - b) : undefined),
    (value) => value.join("."),
  ),
  first: none,
});

/** The fields of a hash, by name. */
export type Fields = Record<string, Field<never>>;

/** Every page keeps these. */
export const APPEARANCE = {
  theme: among(theme, THEMES),
  lang: field(language, (text) => (["en", "ja", "zh"].includes(text) ? text : undefined)),
};

/** The state as a hash, without fields at their initial values; `kept` chooses the fields. */
export function toHash(fields: Fields, kept: (name: string) => boolean = () => true): string {
  const parts: string[] = [];
  for (const [name, { signal: target, first, write }] of Object.entries(fields)) {
    const value = target.value as unknown;
    if (kept(name) && value !== first && value !== null) parts.push(`${name}=${encodeURIComponent(write(value as never))}`);
  }
  return parts.join("&");
}

/** What somebody else opens: the picture, in the language and colours of whoever opens it. */
export const toShare = (fields: Fields): string => toHash(fields, (name) => !(name in APPEARANCE));

/** Set the state from a hash; missing fields get their initial values. Returns the parts that say nothing. */
export function fromHash(fields: Fields, hash: string): string[] {
  const params = new URLSearchParams(hash.replace(/^#/, ""));
  const unread = [...params].filter(([name]) => !Object.hasOwn(fields, name)).map(([name, text]) => `${name}=${text}`);
  batch(() => {
    for (const [name, { signal: target, first, read }] of Object.entries(fields)) {
      const text = params.get(name);
      const value = text === null ? first : read(text);
      if (value === undefined) unread.push(`${name}=${text}`);
      (target as Signal<unknown>).value = value ?? first;
    }
  });
  return unread;
}
