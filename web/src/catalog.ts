// The statistics that Python lists (headscope/statistics/catalog.py): the page is told their names, units and ranges.
import { signal } from "@preact/signals";
import { isWord, say, spoken } from "./words";

export interface Statistic {
  name: string;
  /** By language. */
  names: Record<string, string>;
  units: Record<string, string>;
  low: number | null;
  high: number | null;
  /** For the weight on all special tokens of a kind: how vocabularies spell them. */
  tokens: string[] | null;
}

export const catalog = signal<Statistic[]>([]);

const entry = (name: string): Statistic | undefined => catalog.value.find((one) => one.name === name);

/** A statistic's name in the reader's language: Python's, or that of a measure which only the page has. */
export function statisticName(name: string): string {
  const word = `stat_${name}`;
  return entry(name)?.names[spoken.value] ?? (isWord(word) ? say(word) : name);
}

export function statisticUnit(name: string): string {
  const word = `unit_${name}`;
  return entry(name)?.units[spoken.value] ?? (isWord(word) ? say(word) : "");
}

/** How special tokens are spelled on which the weight is measured, by statistic. */
export const massTokens = (): Record<string, string[]> =>
  Object.fromEntries(catalog.value.flatMap(({ name, tokens }) => (tokens ? [[name, tokens]] : [])));

/** What fills a statistic's bar: the end of its range, or the largest of these numbers where it has none. */
export const barEnd = (name: string, numbers: Float32Array): number =>
  entry(name)?.high ?? numbers.reduce((most, value) => (Math.abs(value) > most ? Math.abs(value) : most), 1e-9);
