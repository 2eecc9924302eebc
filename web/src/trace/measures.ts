// Statistics of a head, and distances between heads, as in headscope.heads.
import { allowedKeys, entropy, size, sunk, total, viewRows, weightRow, type Groups, type View } from "./cells";
import type { HeadArrays } from "./head";
import { pooled } from "./pooling";

/** Step between the queries that heads are compared on: all of a short text, about 128 of a long one. */
export const everyRow = (queries: number): number => Math.max(1, Math.ceil(queries / 128));

/** Some rows of a head, one after the other, each with its sink as one more place, and their entropies; NaN for a query without keys. */
export interface Sample {
  rows: Float32Array;
  entropies: Float32Array;
}

/** Every so many queries of a head. */
export function sample(head: HeadArrays): Sample {
  const every = everyRow(head.queries);
  const wide = head.keys + 1;
  const entropies = new Float32Array(Math.ceil(head.queries / every));
  const rows = new Float32Array(entropies.length * wide);
  for (let n = 0; n < entropies.length; n++) {
    const row = rows.subarray(n * wide, (n + 1) * wide);
    weightRow(head, n * every, row);
    const seen = total(row);
    row[head.keys] = sunk(head, seen);
    entropies[n] = seen > 0 ? entropy(row) : NaN;
  }
  return { rows, entropies };
}

/** sqrt(mean over rows of JS(p || q)), in nats: 0 if equal, sqrt(log 2) if nothing is in common. As in headscope.heads.head_distances. */
export function distance(a: Sample, b: Sample): number {
  const wide = a.rows.length / a.entropies.length;
  const mixed = new Float64Array(wide);
  let sum = 0;
  let count = 0;
  for (let r = 0; r < a.entropies.length; r++) {
    const apart = a.entropies[r] + b.entropies[r];
    if (Number.isNaN(apart)) continue;
    for (let n = 0; n < wide; n++) mixed[n] = (a.rows[r * wide + n] + b.rows[r * wide + n]) / 2;
    sum += entropy(mixed) - apart / 2;
    count++;
  }
  return count ? Math.sqrt(Math.min(Math.LN2, Math.max(0, sum / count))) : NaN;
}

/** Roles of the keys, as in headscope.heads.reference. */
export interface Roles {
  /** Statistic -> the keys whose weights it sums. */
  masses: Record<string, boolean[]>;
  /** The text of a pair that each belongs to, 0 or 1; -1 for none. */
  texts: number[];
}

/** With those that special tokens of these spellings have. */
export const withMasses = ({ masses, texts }: Roles, spellings: Record<string, string[]>, { tokens, special }: { tokens: string[]; special: boolean[] }): Roles => ({
  texts, masses: { ...masses, ...Object.fromEntries(Object.entries(spellings).map(([name, spelled]) => [name, tokens.map((token, j) => special[j] && spelled.includes(token))])) },
});

export interface HeadMeasure {
  thumb: Uint8Array;
  rows: number;
  columns: number;
  statistics: Record<string, number>;
}

const MEASURED_CELLS = 1 << 21;
const RUN = 8;
/** Rows and columns of a thumbnail, at most. */
const THUMB = 48;

/** 1 if every query is measured, n if every nth run of eight is: as in headscope.page.trace. */
export const measuredShare = (queries: number, keys: number): number => Math.max(1, Math.ceil((queries * keys) / MEASURED_CELLS));

/** Cells that a filtered picture is measured from: it is computed while somebody looks. */
const SIFTED_CELLS = 1 << 18;

/** The same of what filters leave. */
export const siftedShare = ({ rows, columns }: View): number => Math.max(1, Math.ceil((size(rows) * size(columns)) / SIFTED_CELLS));

const each = (count: number): Groups => ({ starts: Int32Array.from({ length: count + 1 }, (_, n) => n), members: Int32Array.from({ length: count }, (_, n) => n) });

/**
 * A head's thumbnail and statistics, for traces that come without them and for what filters leave, by the rules of
 * docs/statistics.md: padding and queries without keys are excluded, and cross-attention (not aligned) has no neighbours. A
 * statistic that no query has is left out; all are NaN if some of the head's weights are not numbers.
 *
 * With a view, each row is what the filters leave of it, scaled to a sum of 1; places are those of first tokens.
 */
export function measure(head: HeadArrays, { masses, texts }: Roles, aligned: boolean, sifted: View | null = null, normed = false): HeadMeasure {
  const { keys, queries, rule } = head;
  const view = sifted ?? { rows: each(queries), columns: each(keys), renormalise: false };
  const every = sifted ? siftedShare(sifted) : measuredShare(queries, keys);
  const [down, across] = [size(view.rows), size(view.columns)];
  const tokens = ({ starts, members }: Groups, n: number): Int32Array => members.subarray(starts[n], starts[n + 1]);
  const all = Int32Array.from({ length: across }, (_, n) => n);
  const firsts = all.map((c) => tokens(view.columns, c)[0]);
  const columnOf = new Int32Array(keys).fill(-1);
  for (let c = 0; c < across; c++) for (const j of tokens(view.columns, c)) columnOf[j] = c;
  const sums: Record<string, number> = {};
  const counts: Record<string, number> = {};
  let broken = false;
  const add = (name: string, value: number): void => {
    sums[name] = (sums[name] ?? 0) + value;
    counts[name] = (counts[name] ?? 0) + 1;
  };
  const columnsOf = (has: (j: number) => boolean): Int32Array => all.filter((c) => has(firsts[c]));
  const roles = Object.entries(masses).map(([name, has]) => [name, columnsOf((j) => has[j])] as const).filter(([, on]) => on.length);
  const segments = [0, 1].map((text) => columnsOf((j) => texts[j] === text));
  const count = (r: number, row: Float32Array): void => {
    /** The sum of the row on some columns. */
    const summed = (on: Int32Array): number => {
      let sum = 0;
      for (let n = 0; n < on.length; n++) sum += row[on[n]];
      return sum;
    };
    const own = tokens(view.rows, r);
    const [place, last] = [own[0], own[own.length - 1]].map((i) => i + keys - queries);
    const sum = total(row);
    if (sifted && sum > 0) for (let c = 0; c < across; c++) row[c] /= sum;
    broken ||= Number.isNaN(sum);
    let [strongest, squares, offset, distance] = [0, 0, 0, 0];
    for (let c = 0; c < across; c++) {
      const [weight, apart] = [row[c], firsts[c] - place];
      if (weight > strongest) strongest = weight;
      squares += weight * weight;
      offset += weight * apart;
      distance += weight * Math.abs(apart);
    }
    // neither a query without keys nor padding
    if (strongest === 0 || (aligned && rule.keys?.[place] === 0)) return;
    const share = sifted ? 0 : sunk(head, sum);
    const nats = entropy(row) + entropy([share]);
    add("entropy", nats);
    const allowed = allowedKeys(head, own[0], firsts);
    if (allowed > 1) add("normalised_entropy", nats / Math.log(allowed + (head.terms?.sink == null || sifted ? 0 : 1)));
    add("effective_tokens", 1 / (squares + share ** 2));
    add("strongest", strongest);
    if (columnOf[0] >= 0) add("first", row[columnOf[0]]);
    for (const [name, on] of roles) add(name, summed(on));
    if (!aligned) return;
    const text = texts[own[0]];
    if (text >= 0) add("other_sentence", summed(segments[1 - text]));
    add("offset", offset);
    add("distance", distance);
    for (const [name, j] of [["previous", place - 1], ["next", last + 1], ["same", place]] as const) {
      const c = columnOf[j] ?? -1;
      if (c >= 0) add(name, row[c]);
    }
  };
  const { data, height: rows, width: columns } = pooled([0, down, 0, across], THUMB, THUMB, (first, last) => {
    if (Math.floor(first / RUN) % every) return new Float32Array((last - first) * across);
    const values = viewRows(head, view, first, last, 0, across, normed);
    for (let r = first; r < last; r++) count(r, values.slice((r - first) * across, (r - first + 1) * across));
    return values;
  });
  const statistics = Object.fromEntries(Object.keys(sums).map((name) => [name, broken ? NaN : sums[name] / counts[name]]));
  // weights times norms have no common end
  const end = normed ? data.reduce((most, w) => (w > most ? w : most), 0) || 1 : 1;
  const thumb = Uint8Array.from(data, (w) => Math.round(255 * Math.sqrt(Math.min(1, w / end))));
  return { thumb, rows, columns, statistics };
}
