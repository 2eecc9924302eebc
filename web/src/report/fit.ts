// Which words of a line fit beside the word that looks, so that both words of its pair are always whole.

export type Item = { word: number } | { skip: number };

export interface Room {
  /** Width of each word, the space after it included. */
  widths: number[];
  left: number;
  right: number;
  /** Width of the mark for words that are left out. */
  mark: number;
}

/** Items from the word that looks outwards: on its left (to be drawn reversed), and on its right, without itself. */
export function fitted(query: number, key: number, gap: [number, number] | null, { widths, left, right, mark }: Room): { before: Item[]; after: Item[] } {
  const outward = (step: number): number[] => {
    const order: number[] = [];
    for (let word = query + step; word >= 0 && word < widths.length; word += step) order.push(word);
    return order;
  };
  /** Words left out in the data between two that are side by side here. */
  const missing = (a: number, b: number): number => (gap && Math.max(a, b) === gap[0] ? gap[1] : 0);
  return {
    before: side(outward(-1), key < query ? key : null, left, widths, mark, missing),
    after: side(outward(1), key > query ? key : null, right - widths[query], widths, mark, missing),
  };
}

function side(
  order: number[], key: number | null, room: number, widths: number[], mark: number, missing: (a: number, b: number) => number,
): Item[] {
  const at = key === null ? -1 : order.indexOf(key);
  const items: Item[] = [];
  let used = 0;
  const take = (from: number): Item[] => {
    for (let n = from; n < order.length && used < room; n++) {
      if (n > 0 && missing(order[n - 1], order[n])) break;
      items.push({ word: order[n] });
      used += widths[order[n]];
    }
    return items;
  };
  if (at < 0) return take(0);
  const apart = order.slice(1, at + 1).some((word, n) => missing(order[n], word) > 0);
  const all = order.slice(0, at + 1).reduce((sum, word) => sum + widths[word], 0);
  if (!apart && all <= room) return take(0);
  // The middle is left out: words beside the one that looks, then a mark, then words up to the key.
  let [near, far, left] = [0, at, room - widths[order[at]] - mark];
  for (let turn = 0, stuck = 0; stuck < 2 && near < far; turn ^= 1) {
    const word = turn ? order[far - 1] : order[near];
    const crosses = turn ? missing(order[far - 1], order[far]) : near > 0 && missing(order[near - 1], order[near]);
    if (crosses || widths[word] > left) {
      stuck++;
      continue;
    }
    stuck = 0;
    left -= widths[word];
    if (turn) far--;
    else near++;
  }
  for (let n = 0; n < near; n++) items.push({ word: order[n] });
  let skip = far - near;
  for (let n = near; n <= far; n++) if (n > 0) skip += missing(order[n - 1], order[n]);
  if (skip) items.push({ skip });
  for (let n = far; n <= at; n++) items.push({ word: order[n] });
  used = room - left;
  return take(at + 1);
}
