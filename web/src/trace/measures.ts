// Statistics of a head, and distances between heads, as in headscope.statistics.
import { allowedKeys, weightRow } from "./cells";
import type { HeadArrays } from "./head";

/** Step between the queries that heads are compared on: all of a short text, about 128 of a long one. */
export const everyRow = (queries: number): number => Math.max(1, Math.ceil(queries / 128));

/** Some rows of a head, one after the other, and their entropies; NaN for a query without keys. */
export interface Sample {
  rows: Float32Array;
  entropies: Float32Array;
}

export function sample(head: HeadArrays): Sample {
  const every = everyRow(head.queries);
  const count = Math.ceil(head.queries / every);
  const rows = new Float32Array(count * head.keys);
  const entropies = new Float32Array(count);
  for (let n = 0; n < count; n++) {
    const row = rows.subarray(n * head.keys, (n + 1) * head.keys);
    entropies[n] = weightRow(head, n * every, row);
    let total = 0;
    for (let j = 0; j < row.length; j++) total += row[j];
    if (total === 0) entropies[n] = NaN;
  }
  return { rows, entropies };
}

/** sqrt(mean over rows of JS(p || q)), in nats: 0 if equal, sqrt(log 2) if nothing is in common. As in headscope.statistics.distances. */
export function distance(a: Sample, b: Sample): number {
  const keys = a.rows.length / a.entropies.length;
  let sum = 0;
  let count = 0;
  for (let r = 0; r < a.entropies.length; r++) {
    const apart = a.entropies[r] + b.entropies[r];
    if (Number.isNaN(apart)) continue;
    let mixed = 0;
    for (let n = r * keys; n < (r + 1) * keys; n++) {
      const m = (a.rows[n] + b.rows[n]) / 2;
      if (m > 0) mixed -= m * Math.log(m);
    }
    sum += mixed - apart / 2;
    count++;
  }
  return count ? Math.sqrt(Math.min(Math.LN2, Math.max(0, sum / count))) : NaN;
}

/** Half the summed differences of a row, averaged over rows: 0 if equal, 1 if nothing is in common. */
export function change(a: Sample, b: Sample): number {
  const keys = a.rows.length / a.entropies.length;
  let sum = 0;
  let count = 0;
  for (let r = 0; r < a.entropies.length; r++) {
    if (Number.isNaN(a.entropies[r] + b.entropies[r])) continue;
    for (let n = r * keys; n < (r + 1) * keys; n++) sum += Math.abs(a.rows[n] - b.rows[n]);
    count++;
  }
  return count ? sum / (2 * count) : NaN;
}

export interface HeadMeasure {
  thumb: Uint8Array;
  rows: number;
  columns: number;
  statistics: Record<string, number>;
}

const MEASURED_CELLS = 1 << 21;
const RUN = 8;

/** 1 if every query is measured, n if every nth run of eight is: as in headscope.view.page_trace. */
export const measuredShare = (queries: number, keys: number): number => Math.max(1, Math.ceil((queries * keys) / MEASURED_CELLS));

/**
 * A head's thumbnail and statistics, for traces that come without them, by the rules of docs/statistics.md: padding and
 * queries without keys are excluded, and cross-attention (not aligned) has no neighbours. A statistic that no query has
 * is left out; all are NaN if some of the head's weights are not numbers.
 *
 * `masses`: statistic -> the keys whose weights it sums.
 */
export function measure(head: HeadArrays, masses: Record<string, boolean[]>, aligned: boolean, most = 48): HeadMeasure {
  const { queries, keys, rule } = head;
  const every = measuredShare(queries, keys);
  const rows = Math.min(most, queries);
  const columns = Math.min(most, keys);
  const pooled = new Float32Array(rows * columns);
  const row = new Float32Array(keys);
  const sums: Record<string, number> = {};
  const counts: Record<string, number> = {};
  let broken = false;
  const add = (name: string, value: number): void => {
    sums[name] = (sums[name] ?? 0) + value;
    counts[name] = (counts[name] ?? 0) + 1;
  };
  const roles = Object.entries(masses).filter(([, keys]) => keys.includes(true));
  for (let i = 0; i < queries; i++) {
    if (Math.floor(i / RUN) % every) continue;
    const nats = weightRow(head, i, row);
    const place = i + keys - queries;
    const base = Math.floor((i * rows) / queries) * columns;
    let strongest = 0;
    let squares = 0;
    let offset = 0;
    let distance = 0;
    for (let j = 0; j < keys; j++) {
      const w = row[j];
      squares += w * w;
      offset += w * (j - place);
      distance += w * Math.abs(j - place);
      if (w > strongest) strongest = w;
      const at = base + Math.floor((j * columns) / keys);
      if (w > pooled[at]) pooled[at] = w;
    }
    const padding = aligned && rule.keys !== null && !rule.keys[place];
    broken ||= Number.isNaN(nats);
    if (strongest === 0 || padding) continue;
    add("entropy", nats);
    const allowed = allowedKeys(head, i);
    const sunk = head.terms?.sink == null ? null : 1 - row.reduce((sum, w) => sum + w, 0);
    if (allowed > 1) add("normalised_entropy", nats / Math.log(allowed + (sunk === null ? 0 : 1)));
    add("effective_tokens", 1 / (squares + (sunk ?? 0) ** 2));
    add("strongest", strongest);
    add("first", row[0]);
    for (const [name, keys] of roles) add(name, row.reduce((sum, w, j) => (keys[j] ? sum + w : sum), 0));
    if (!aligned) continue;
    add("offset", offset);
    add("distance", distance);
    for (const [name, step] of [["previous", -1], ["next", 1], ["same", 0]] as const) {
      const j = place + step;
      if (j >= 0 && j < keys) add(name, row[j]);
    }
  }
  const statistics = Object.fromEntries(Object.keys(sums).map((name) => [name, broken ? NaN : sums[name] / counts[name]]));
  const thumb = Uint8Array.from(pooled, (w) => Math.round(255 * Math.sqrt(Math.min(1, w))));
  return { thumb, rows, columns, statistics };
}
