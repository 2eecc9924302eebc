// A head's weights: one row, rows of the picture, every cell, a tile pooled to the screen's size.
// The formulas are those of headscope.attention.scores, computed only for the cells on the screen.
import { pooled } from "./pooling";
import type { HeadArrays, LayerRule } from "./head";
import { addTerms } from "./terms";

/** The tokens joined in each row and column of the picture (those of a word), as one list with starts. */
export interface Groups {
  starts: Int32Array;
  members: Int32Array;
}

export interface View {
  rows: Groups;
  columns: Groups;
  /** The mass of hidden keys is distributed over the others, so that rows keep their sums. */
  renormalise: boolean;
}

export const size = (groups: Groups): number => groups.starts.length - 1;

/** A row of a mask whose highest number is beyond this is shifted as a whole: see `scores` in headscope.attention.scores. */
const FAR = 100;

/** The shift of query i's row of the mask, or 0: beside a sink, which it doesn't shift, it counts. */
export function shiftOf(head: HeadArrays, i: number): number {
  const { bias, keys } = head;
  if (!bias || head.terms?.sink != null) return 0;
  let highest = -Infinity;
  for (let n = i * keys; n < (i + 1) * keys; n++) if (bias[n] > highest) highest = bias[n];
  return highest !== -Infinity && Math.abs(highest) > FAR ? highest : 0;
}

/** Scores of query i with keys [from, to), into out[0 .. to - from): scale * q_i . k_j, terms and bias, -Infinity where masked. */
export function scoreRow(head: HeadArrays, i: number, from: number, to: number, out: Float32Array): void {
  const { q, k, d, rule, bias, keys, queries } = head;
  const at = i * d;
  const scale = rule.scale;
  const whole = d - (d % 4);
  for (let j = from; j < to; j++) {
    const key = j * d;
    let a = 0;
    let b = 0;
    let c = 0;
    let e = 0;
    for (let n = 0; n < whole; n += 4) {
      a += q[at + n] * k[key + n];
      b += q[at + n + 1] * k[key + n + 1];
      c += q[at + n + 2] * k[key + n + 2];
      e += q[at + n + 3] * k[key + n + 3];
    }
    for (let n = whole; n < d; n++) a += q[at + n] * k[key + n];
    out[j - from] = (a + b + c + e) * scale;
  }
  addTerms(head, i, from, to, out);
  if (bias) {
    // The sum is rounded to 32 bits, as the model's kernel rounds it, before a shift is removed.
    const shift = shiftOf(head, i);
    for (let j = from; j < to; j++) {
      out[j - from] += bias[i * keys + j];
      if (shift) out[j - from] -= shift;
    }
  }
  if (rule.causal || rule.window || rule.keys) {
    const place = i + keys - queries;
    for (let j = from; j < to; j++) if (!allowed(head, place, j)) out[j - from] = -Infinity;
  }
}

export const allowed = (head: HeadArrays, place: number, j: number): boolean => sees(head.rule, place, j);

/** Whether a query that stands at this place among the keys may look at key j, as far as the layer's rule goes. */
export function sees({ causal, window, keys }: LayerRule, place: number, j: number): boolean {
  if (causal && j > place) return false;
  if (window) {
    if (window[0] !== null && j < place - window[0]) return false;
    if (window[1] !== null && j > place + window[1]) return false;
  }
  return !(keys && !keys[j]);
}

/** True if every query sees every key and nothing is added to the scores. */
const bare = ({ bias, terms, rule }: HeadArrays): boolean => !bias && !terms && !rule.causal && !rule.window && !rule.keys;

/** How many of these keys a query may look at. */
export function allowedKeys(head: HeadArrays, i: number, of: Int32Array): number {
  const { keys, queries, bias } = head;
  if (bare(head)) return of.length;
  let count = 0;
  for (const j of of) if (allowed(head, i + keys - queries, j) && bias?.[i * keys + j] !== -Infinity) count++;
  return count;
}

/**
 * Turn a row's scores into weights in place by softmax: all 0 for a row without keys, NaN if the scores are not numbers.
 * A sink takes its share of a row that sees a key.
 */
function soften(keys: number, row: Float32Array, masked: boolean, sink: number | null = null): void {
  let highest = -Infinity;
  for (let j = 0; j < keys; j++) if (row[j] > highest) highest = row[j];
  if (highest === -Infinity) {
    row.fill(masked && !row.subarray(0, keys).some(Number.isNaN) ? 0 : NaN, 0, keys);
    return;
  }
  if (sink !== null && sink > highest) highest = sink;
  let total = sink === null ? 0 : Math.exp(sink - highest);
  for (let j = 0; j < keys; j++) {
    const below = row[j] - highest;
    if (below < -103) {
      row[j] = 0;
      continue;
    }
    total += row[j] = Math.exp(below);
  }
  const share = 1 / total;
  for (let j = 0; j < keys; j++) row[j] *= share;
}

/** Weights of query i over all keys. */
export function weightRow(head: HeadArrays, i: number, out: Float32Array): void {
  scoreRow(head, i, 0, head.keys, out);
  soften(head.keys, out, !bare(head), head.terms?.sink ?? null);
}

/** The weight that a sink takes of a row that sees a key: what the row's sum lacks of 1. */
export const sunk = ({ terms }: HeadArrays, sum: number): number => (terms?.sink == null ? 0 : Math.max(0, 1 - sum));

/** Entropy of a row of weights, in nats. */
export function entropy(row: ArrayLike<number>): number {
  let sum = 0;
  for (let j = 0; j < row.length; j++) if (row[j] > 0) sum -= row[j] * Math.log(row[j]);
  return sum;
}

export function total(row: ArrayLike<number>): number {
  let sum = 0;
  for (let j = 0; j < row.length; j++) sum += row[j];
  return sum;
}

/** Entropy of a row as the statistic has it: a sink's share is one more place; without the keys that are hidden, what is left is scaled to a sum of 1. */
export function rowEntropy(row: Float32Array, hides: boolean): number {
  const sum = total(row);
  return hides && sum > 0 ? entropy(row) / sum + Math.log(sum) : entropy(row) + entropy([1 - sum]);
}

const FOUR = 4;

/** Scores of four queries with all keys, reading every key only once. */
function scoreFour(head: HeadArrays, queries: ArrayLike<number>, from: number, out: Float32Array): void {
  const { q, k, d, rule, keys } = head;
  const held = new Float64Array(FOUR * d);
  for (let r = 0; r < FOUR; r++) for (let n = 0; n < d; n++) held[FOUR * n + r] = q[queries[from + r] * d + n];
  const { scale } = rule;
  for (let j = 0; j < keys; j++) {
    const key = j * d;
    let a = 0;
    let b = 0;
    let c = 0;
    let e = 0;
    for (let n = 0, m = 0; n < d; n++, m += FOUR) {
      const x = k[key + n];
      a += held[m] * x;
      b += held[m + 1] * x;
      c += held[m + 2] * x;
      e += held[m + 3] * x;
    }
    out[j] = a * scale;
    out[keys + j] = b * scale;
    out[2 * keys + j] = c * scale;
    out[3 * keys + j] = e * scale;
  }
}

/** True if this side of the picture is the plain text: one token per row or column, none hidden. */
export function plain({ members, starts }: Groups, all: number): boolean {
  let n = 0;
  while (n < members.length && members[n] === n && starts[n] === n) n++;
  return n === all && members.length === all && starts.length === all + 1;
}

/** Rows [from, to) over the columns [left, right), into `out`. */
function fill(
  head: HeadArrays, view: View, from: number, to: number, left: number, right: number, normed: boolean,
  out: Float32Array,
): void {
  const { rows, columns } = view;
  const { keys } = head;
  const norms = normed ? head.valueNorms : null;
  const every = left === 0 && right === size(columns);
  const width = right - left;
  if (every && !view.renormalise && plain(columns, keys) && rows.members.length === size(rows)) {
    let r = from;
    if (bare(head)) {
      for (; r + FOUR <= to; r += FOUR) {
        const part = out.subarray((r - from) * keys, (r - from + FOUR) * keys);
        scoreFour(head, rows.members, r, part);
        for (let n = 0; n < FOUR; n++) soften(keys, part.subarray(n * keys, (n + 1) * keys), false);
      }
    }
    for (; r < to; r++) weightRow(head, rows.members[r], out.subarray((r - from) * keys, (r - from + 1) * keys));
    if (norms) for (let n = 0, j = 0; n < (to - from) * keys; n++, j = j + 1 === keys ? 0 : j + 1) out[n] *= norms[j];
    return;
  }
  const row = new Float32Array(keys);
  for (let r = from; r < to; r++) {
    const first = rows.starts[r];
    const last = rows.starts[r + 1];
    for (let piece = first; piece < last; piece++) {
      const i = rows.members[piece];
      let kept = 1;
      if (every || view.renormalise || columns.members.length !== keys || !head.lse) {
        weightRow(head, i, row);
        if (view.renormalise) {
          kept = 0;
          for (let n = 0; n < columns.members.length; n++) kept += row[columns.members[n]];
        }
      } else {
        // only the tile, because the file has the row's log-sum-exp
        const start = columns.members[columns.starts[left]];
        const stop = columns.members[columns.starts[right] - 1] + 1;
        const part = row.subarray(start, stop);
        scoreRow(head, i, start, stop, part);
        const lse = head.lse[i];
        for (let j = 0; j < part.length; j++) part[j] = lse === -Infinity ? 0 : Math.exp(part[j] - lse);
      }
      const share = kept === 0 ? 0 : 1 / (kept * (last - first));
      const base = (r - from) * width;
      for (let c = left; c < right; c++) {
        let sum = 0;
        for (let n = columns.starts[c]; n < columns.starts[c + 1]; n++) {
          const j = columns.members[n];
          sum += norms ? row[j] * norms[j] : row[j];
        }
        out[base + c - left] += sum * share;
      }
    }
  }
}

/** One head, or several whose mean is meant. */
export type Heads = HeadArrays | readonly HeadArrays[];

/** Rows [from, to) of the picture over its columns [left, right): mean over a row's tokens, sum over a column's; of several heads, the mean. */
export function viewRows(
  heads: Heads, view: View, from: number, to: number, left: number, right: number, normed = false,
): Float32Array {
  const all = [heads].flat();
  const out = new Float32Array((to - from) * (right - left));
  for (const head of all) {
    const part = all.length > 1 ? new Float32Array(out.length) : out;
    fill(head, view, from, to, left, right, normed, part);
    if (part !== out) for (let n = 0; n < out.length; n++) out[n] += part[n] / all.length;
  }
  return out;
}

/** Rows and columns [..) of the picture, pooled to height x width by the value furthest from 0. */
export const tile = (heads: Heads, view: View, box: [number, number, number, number], height: number, width: number, normed = false): Float32Array =>
  pooled(box, height, width, (first, last) => viewRows(heads, view, first, last, box[2], box[3], normed)).data;
