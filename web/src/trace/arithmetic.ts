// The mathematics of the page: rows of weights, tiles of them, statistics of a head, one cell's whole chain.
// The formulas are those of headscope.attention; here they are computed for what is being looked at.
import type { HeadArrays } from "./trace";

/** Which tokens stand together in each row and column of the picture (word pieces of a word), as one list with starts. */
export interface Groups {
  starts: Int32Array;
  members: Int32Array;
}

export interface View {
  rows: Groups;
  columns: Groups;
  /** Hidden keys' mass is given back to the others, so that rows add up to what they did. */
  renormalise: boolean;
}

export const size = (groups: Groups): number => groups.starts.length - 1;

/** Scores of query i with keys [from, to), into out[0 .. to - from): scale * q_i . k_j + bias, -Infinity where masked. */
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
  if (bias) for (let j = from; j < to; j++) out[j - from] += bias[i * keys + j];
  if (rule.causal || rule.window || rule.keys) {
    const place = i + keys - queries;
    for (let j = from; j < to; j++) if (!allowed(head, place, j)) out[j - from] = -Infinity;
  }
}

function allowed(head: HeadArrays, place: number, j: number): boolean {
  const { causal, window, keys } = head.rule;
  if (causal && j > place) return false;
  if (window) {
    if (window[0] !== null && j < place - window[0]) return false;
    if (window[1] !== null && j > place + window[1]) return false;
  }
  return !(keys && !keys[j]);
}

/** Weights of query i over all keys, the softmax taken over this very row; 0 everywhere where it sees no key. */
export function weightRow(head: HeadArrays, i: number, out: Float32Array): void {
  const { keys } = head;
  scoreRow(head, i, 0, keys, out);
  let highest = -Infinity;
  for (let j = 0; j < keys; j++) if (out[j] > highest) highest = out[j];
  if (highest === -Infinity) {
    out.fill(0, 0, keys);
    return;
  }
  let total = 0;
  for (let j = 0; j < keys; j++) total += out[j] = Math.exp(out[j] - highest);
  for (let j = 0; j < keys; j++) out[j] /= total;
}

/** Rows [from, to) of the picture over its columns [left, right). Mean over a row's pieces, sum over a column's. */
export function viewRows(
  head: HeadArrays, view: View, from: number, to: number, left: number, right: number, normed = false,
): Float32Array {
  const width = right - left;
  const out = new Float32Array((to - from) * width);
  const row = new Float32Array(head.keys);
  const { rows, columns } = view;
  const norms = normed ? head.valueNorms : null;
  const every = left === 0 && right === size(columns);
  for (let r = from; r < to; r++) {
    const first = rows.starts[r];
    const last = rows.starts[r + 1];
    for (let piece = first; piece < last; piece++) {
      const i = rows.members[piece];
      let kept = 1;
      if (every || view.renormalise || columns.members.length !== head.keys) {
        weightRow(head, i, row);
        if (view.renormalise) {
          kept = 0;
          for (let n = 0; n < columns.members.length; n++) kept += row[columns.members[n]];
        }
      } else {
        // only the tile: the row's own log-sum-exp is in the file
        const start = columns.members[columns.starts[left]];
        const stop = columns.members[columns.starts[right] - 1] + 1;
        const part = row.subarray(start, stop);
        scoreRow(head, i, start, stop, part);
        const lse = head.lse[i];
        for (let j = 0; j < part.length; j++) part[j] = lse === -Infinity ? 0 : Math.exp(part[j] - lse);
      }
      const share = kept > 0 ? 1 / (kept * (last - first)) : 0;
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
  return out;
}

/** Rows and columns [..) of the picture pooled into height x width by what lies furthest from 0. */
export function tile(
  head: HeadArrays, minus: HeadArrays | null, view: View,
  box: [number, number, number, number], height: number, width: number, normed = false,
): Float32Array {
  const [top, bottom, left, right] = box;
  height = Math.min(height, bottom - top);
  width = Math.min(width, right - left);
  const out = new Float32Array(height * width);
  const columnOf = new Int32Array(right - left);
  for (let c = 0; c < columnOf.length; c++) columnOf[c] = Math.floor((c * width) / columnOf.length);
  for (let r = top; r < bottom; r++) {
    const row = viewRows(head, view, r, r + 1, left, right, normed);
    if (minus) {
      const other = viewRows(minus, view, r, r + 1, left, right, normed);
      for (let c = 0; c < row.length; c++) row[c] -= other[c];
    }
    const base = Math.floor(((r - top) * height) / (bottom - top)) * width;
    for (let c = 0; c < row.length; c++) {
      const at = base + columnOf[c];
      if (Math.abs(row[c]) > Math.abs(out[at])) out[at] = row[c];
    }
  }
  return out;
}

export interface HeadMeasure {
  thumb: Uint8Array;
  rows: number;
  columns: number;
  statistics: Record<string, number>;
}

/** A head's thumbnail and statistics, for traces that come without them. As headscope.statistics has them. */
export function measure(head: HeadArrays, special: boolean[], most = 48): HeadMeasure {
  const { queries, keys } = head;
  const rows = Math.min(most, queries);
  const columns = Math.min(most, keys);
  const pooled = new Float32Array(rows * columns);
  const row = new Float32Array(keys);
  const sums = { entropy: 0, previous: 0, next: 0, same: 0, first: 0, separator: 0, distance: 0, strongest: 0 };
  const counts = { previous: 0, next: 0, same: 0 };
  for (let i = 0; i < queries; i++) {
    weightRow(head, i, row);
    const place = i + keys - queries;
    const base = Math.floor((i * rows) / queries) * columns;
    let strongest = 0;
    for (let j = 0; j < keys; j++) {
      const w = row[j];
      if (w > 0) sums.entropy -= w * Math.log(w);
      sums.distance += w * Math.abs(j - place);
      if (special[j] && j > 0) sums.separator += w;
      if (w > strongest) strongest = w;
      const at = base + Math.floor((j * columns) / keys);
      if (w > pooled[at]) pooled[at] = w;
    }
    sums.first += row[0];
    sums.strongest += strongest;
    for (const [name, offset] of [["previous", -1], ["next", 1], ["same", 0]] as const) {
      const j = place + offset;
      if (j >= 0 && j < keys) {
        sums[name] += row[j];
        counts[name]++;
      }
    }
  }
  const statistics = Object.fromEntries(
    Object.entries(sums).map(([name, sum]) => [name, sum / Math.max(1, (counts as Record<string, number>)[name] ?? queries)]),
  );
  const thumb = Uint8Array.from(pooled, (w) => Math.round(255 * Math.sqrt(Math.min(1, w))));
  return { thumb, rows, columns, statistics };
}

/** Everything between one query and one key. */
export interface Chain {
  q: Float32Array;
  k: Float32Array;
  product: Float32Array;
  dot: number;
  scale: number;
  bias: number;
  masked: boolean;
  score: number;
  lse: number;
  highest: number;
  weight: number;
  scores: Float32Array;
  weights: Float32Array;
  v: Float32Array | null;
}

export function chain(head: HeadArrays, values: { v: Float32Array; d: number } | null, i: number, j: number): Chain {
  const { d, keys, rule } = head;
  const q = head.q.slice(i * d, (i + 1) * d);
  const k = head.k.slice(j * d, (j + 1) * d);
  const product = q.map((number, n) => number * k[n]);
  const dot = product.reduce((sum, number) => sum + number, 0);
  const scores = new Float32Array(keys);
  scoreRow(head, i, 0, keys, scores);
  const weights = new Float32Array(keys);
  weightRow(head, i, weights);
  const highest = scores.reduce((most, score) => Math.max(most, score), -Infinity);
  const total = scores.reduce((sum, score) => sum + (highest === -Infinity ? 0 : Math.exp(score - highest)), 0);
  return {
    q, k, product, dot,
    scale: rule.scale,
    bias: head.bias ? head.bias[i * keys + j] : 0,
    masked: scores[j] === -Infinity,
    score: scores[j],
    lse: highest + Math.log(total),
    highest,
    weight: weights[j],
    scores, weights,
    v: values ? values.v.slice(j * values.d, (j + 1) * values.d) : null,
  };
}

/** The fewest keys, strongest first, that hold this share of a row's mass. */
export function strongestKeys(row: ArrayLike<number>, mass: number): number[] {
  let total = 0;
  const order: number[] = [];
  for (let j = 0; j < row.length; j++) {
    total += row[j];
    if (row[j] > 0) order.push(j);
  }
  order.sort((a, b) => row[b] - row[a] || a - b);
  const wanted = total * mass;
  let held = 0;
  let n = 0;
  while (n < order.length && (n === 0 || held < wanted - 1e-7)) held += row[order[n++]];
  return order.slice(0, n);
}

export function entropy(row: ArrayLike<number>): number {
  let sum = 0;
  for (let j = 0; j < row.length; j++) if (row[j] > 0) sum -= row[j] * Math.log(row[j]);
  return sum;
}
