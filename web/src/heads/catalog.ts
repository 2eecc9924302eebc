// The catalog of statistics, whose names, units and ranges come from Python (headscope/heads/catalog.py).
import { signal } from "@preact/signals";
import type { TraceInfo } from "../trace/trace";
import { isWord, say, spoken } from "../words";

export interface Statistic {
  name: string;
  /** By language. */
  names: Record<string, string>;
  units: Record<string, string>;
  low: number | null;
  high: number | null;
  /** For the weight on all special tokens of a kind: their spellings. */
  tokens: string[] | null;
}

export const catalog = signal<Statistic[]>([]);

const entry = (name: string): Statistic | undefined => catalog.value.find((statistic) => statistic.name === name);

/** True for what the grid can be asked: Python's statistics, and those that only the page has. */
export const isStatistic = (name: string): boolean => entry(name) !== undefined || isWord(`unit_${name}`) || isWord(`stat_${name}`);

/** A statistic's name in the reader's language, from Python, or from the page for measures that only it has. */
export function statisticName(name: string): string {
  const word = `stat_${name}`;
  return entry(name)?.names[spoken.value] ?? (isWord(word) ? say(word) : name);
}

export function statisticUnit(name: string): string {
  const word = `unit_${name}`;
  return entry(name)?.units[spoken.value] ?? (isWord(word) ? say(word) : "");
}

/** Statistic -> spellings of the special tokens whose weight it measures. */
export const massTokens = (): Record<string, string[]> =>
  Object.fromEntries(catalog.value.flatMap(({ name, tokens }) => (tokens ? [[name, tokens]] : [])));

/** Rows and columns of a thumbnail, at most. */
const THUMB = 48;

/** Thumbnails of so many heads whose pictures have these rows and columns, without a cell yet. */
export function blankThumbs(heads: number, rows: number, columns: number): NonNullable<TraceInfo["thumbs"]> {
  const [high, wide] = [Math.min(THUMB, rows), Math.min(THUMB, columns)];
  return { data: new Uint8Array(heads * high * wide), rows: high, columns: wide };
}

/** No number yet of so many heads, for each statistic. */
export const blank = (heads: number): Record<string, Float32Array> =>
  Object.fromEntries(catalog.value.map(({ name }) => [name, new Float32Array(heads).fill(NaN)]));
