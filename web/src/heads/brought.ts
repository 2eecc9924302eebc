// What each word brings to one that is followed through the layers: as headscope.results.followed has it.
import type { Followed } from "../trace/follow";
import { largestPlaces } from "../trace/strongest";
import type { TraceInfo } from "../trace/trace";
import { wordAt } from "../text/shown";

/** Below this in every layer, no word is said to be taken in; and smaller shares are not written. */
export const LEAST = 0.02;

/** A head (layer * heads + head) and what it gives and brings of a word. */
interface Through { n: number; weight: number; share: number }

/** A word in the layer where it brings most. */
export interface Brought {
  tokens: number[];
  layer: number;
  /** Over all heads of that layer; and over all layers. */
  share: number;
  total: number;
  /** The head that brings most there, and the one of all that looks hardest. */
  best: Through;
  hardest: Through;
}

export const most = (numbers: ArrayLike<number>): number => largestPlaces(numbers, 1)[0];
const sum = (numbers: ArrayLike<number>): number => Array.from(numbers).reduce((a, b) => a + b, 0);

/** Each other word, the one that brings most over all layers first; without marks, special tokens and the token's own word. */
export function brought({ shares, weights }: Followed, { queries: axis, roles, heads, layers }: TraceInfo, i: number): Brought[] {
  const size = axis.tokens.length;
  const words = new Map<number, number[]>();
  axis.words.forEach((word, j) => {
    if (word === null || word === axis.words[i] || axis.special[j] || roles.masses.punctuation?.[j] || !/[\p{L}\p{N}]/u.test(wordAt(axis, j))) return;
    words.set(word, [...(words.get(word) ?? []), j]);
  });
  return [...words.values()].map((tokens) => {
    const of = (all: Float32Array): number[] => Array.from({ length: layers.length * heads }, (_, n) => sum(tokens.map((j) => all[n * size + j])));
    const [brings, looks] = [of(shares), of(weights)];
    const through = (n: number): Through => ({ n, weight: looks[n], share: brings[n] });
    const rows = layers.map((_, layer) => sum(brings.slice(layer * heads, (layer + 1) * heads)));
    const layer = most(rows);
    const best = layer * heads + most(brings.slice(layer * heads, (layer + 1) * heads));
    return { tokens, layer, share: rows[layer], total: sum(rows), best: through(best), hardest: through(most(looks)) };
  }).sort((a, b) => b.total - a.total);
}

/** The word with the largest share in another layer than the first one's; none where it is small. */
export const elsewhere = ([first, ...others]: Brought[]): Brought | undefined =>
  others.filter(({ layer, share }) => layer !== first.layer && share >= LEAST).sort((a, b) => b.share - a.share)[0];
