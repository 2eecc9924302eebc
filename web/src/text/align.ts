// Alignment of two texts, token by token: the longest common subsequence, and what stands between.
import type { Aligned } from "../trace/difference";

/** By j: the longest common subsequence of a[from, to) with the first j of b[start, end), or with the last where `by` is -1. */
function lengths(a: Int32Array, b: Int32Array, from: number, to: number, start: number, end: number, by: 1 | -1): Int32Array {
  const row = new Int32Array(end - start + 1);
  for (let n = 0; n < to - from; n++) {
    const token = a[by > 0 ? from + n : to - 1 - n];
    let corner = 0;
    for (let j = 1; j < row.length; j++) {
      const above = row[j];
      row[j] = b[by > 0 ? start + j - 1 : end - j] === token ? corner + 1 : Math.max(above, row[j - 1]);
      corner = above;
    }
  }
  return row;
}

/** Pairs of equal tokens, as many as possible, in order (Hirschberg 1975: memory grows with the length, not its square). */
function equals(a: Int32Array, b: Int32Array, from: number, to: number, start: number, end: number, pairs: [number, number][]): void {
  while (from < to && start < end && a[from] === b[start]) pairs.push([from++, start++]);
  let tail = 0;
  while (from < to && start < end && a[to - 1] === b[end - 1]) { to--; end--; tail++; }
  if (to - from === 1 && start < end) {
    const j = b.subarray(start, end).indexOf(a[from]);
    if (j >= 0) pairs.push([from, start + j]);
  } else if (from < to && start < end) {
    const middle = (from + to) >> 1;
    const [left, right] = [lengths(a, b, from, middle, start, end, 1), lengths(a, b, middle, to, start, end, -1)];
    let cut = 0;
    for (let j = 1; j < left.length; j++) if (left[j] + right[end - start - j] > left[cut] + right[end - start - cut]) cut = j;
    equals(a, b, from, middle, start, start + cut, pairs);
    equals(a, b, middle, to, start + cut, end, pairs);
  }
  for (let n = 0; n < tail; n++) pairs.push([to + n, end + n]);
}

/** Every token of both, in order. Between equal ones, one of A and one of B replace each other; of more, each stands alone. */
export function align(a: readonly string[], b: readonly string[]): Aligned {
  const ids = new Map<string, number>();
  const coded = (tokens: readonly string[]): Int32Array =>
    Int32Array.from(tokens, (token) => ids.get(token) ?? (ids.set(token, ids.size), ids.size - 1));
  const pairs: [number, number][] = [];
  equals(coded(a), coded(b), 0, a.length, 0, b.length, pairs);
  pairs.push([a.length, b.length]);
  const [left, right]: number[][] = [[], []];
  let [i, j] = [0, 0];
  for (const [nextA, nextB] of pairs) {
    const replaced = nextA - i === 1 && nextB - j === 1;
    while (i < nextA) {
      left.push(i++);
      right.push(replaced ? j++ : -1);
    }
    while (j < nextB) {
      left.push(-1);
      right.push(j++);
    }
    if (nextA < a.length || nextB < b.length) {
      left.push(i++);
      right.push(j++);
    }
  }
  return { a: Int32Array.from(left), b: Int32Array.from(right) };
}
