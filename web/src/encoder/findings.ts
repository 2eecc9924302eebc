// What is worth reading in a typed text: links, the heads that read neighbours, those that rest. As headscope.explain.findings.
import { weightRow } from "../trace/cells";
import { contentOf, type Part } from "./content";
import { rerun } from "./forward";
import type { Model } from "./model";
import { dot } from "../trace/terms";
import { headOf, type Run, type Writes } from "./heads";

export interface Cell {
  layer: number;
  head: number;
  query: number | null;
  key: number | null;
}

export interface Finding {
  kind: "link" | "previous" | "next" | "sink";
  sentence: string;
  numbers: Record<string, number>;
  cells: Cell[];
  token: string | null;
  tokens: string[];
}

interface Head {
  layer: number;
  head: number;
  /** (tokens, tokens) */
  weights: Float32Array[];
  /** The mean weight on each key. */
  keys: Float64Array;
}

interface Link extends Cell {
  query: number;
  key: number;
  weight: number;
  expected: number;
  telling: number;
}

const [STRONG_LINK, STRONG, EVERY, LEAST_SURPRISE, LEAST_MOVED] = [0.3, 0.5, 0.9, 0.1, 0.001];
const [FAR, EMBEDDED, REFERRED, ACROSS, LINKS, CUT, CLOSER] = [8, 0.05, 1.5, 10, 2, 6, 32];

/** Distance of a share from the expected one, in nats: a Kullback-Leibler divergence of two yes-or-no choices. */
function surprise(share: number, expected: number): number {
  const [p, e] = [share, expected].map((value) => Math.min(1 - 1e-6, Math.max(1e-6, value)));
  return p * Math.log(p / e) + (1 - p) * Math.log((1 - p) / (1 - e));
}

const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;
const percent = (share: number): string =>
  share > 0 && share < 0.005 ? "under 1%" : share >= 0.995 && share < 1 ? "over 99%" : `${Math.round(100 * share)}%`;
const short = (weight: number): string => ({ "0.00": "0", "1.00": "1" })[weight.toFixed(2)] ?? weight.toFixed(2).slice(1);
const quoted = (parts: readonly Part[], at: number): string => {
  const { word, group } = parts[at];
  const again = new Set(parts.filter((one) => one.group === group).map(({ place }) => place)).size > 1;
  return `“${word.length > 24 ? `${word.slice(0, 23)}…` : word}”${again ? ` (${at})` : ""}`;
};
const score = (link: Link): number => surprise(link.weight, link.expected) * link.telling;

function headsOf(model: Model, { pass, ablated }: Run): Head[] {
  const { layers, heads } = model.about.config;
  const all = Array.from({ length: layers * heads }, (_, n) => ({ layer: Math.floor(n / heads), head: n % heads }));
  return all.filter(({ layer, head }) => !ablated.some(([l, h]) => l === layer && h === head)).map(({ layer, head }) => {
    const arrays = headOf(model, pass, layer, head);
    const weights = Array.from({ length: pass.tokens }, (_, i) => {
      const row = new Float32Array(pass.tokens);
      weightRow(arrays, i, row);
      return row;
    });
    const keys = new Float64Array(pass.tokens).map((_, j) => mean(weights.map((row) => row[j])));
    return { layer, head, weights, keys };
  });
}

/** The mean weight on the token at this distance, over the queries that have one, and what it is where queries don't matter. */
function neighbour({ weights, keys }: Head, offset: number): { share: number; expected: number } {
  const queries = weights.flatMap((_, i) => (i + offset in weights ? [i] : []));
  return { share: mean(queries.map((i) => weights[i][i + offset])), expected: mean(queries.map((i) => keys[i + offset])) };
}

/** The mean weight at a link's distance, over the other queries. */
function usual({ weights }: Head, { query, key, weight }: Link): number {
  const at = weights.flatMap((row, i) => (i + key - query in row ? [row[i + key - query]] : []));
  return at.length > 1 ? Math.max(0, (at.reduce((sum, value) => sum + value, 0) - weight) / (at.length - 1)) : 0;
}

function* linksOf(head: Head, parts: readonly Part[]): Generator<Link> {
  if ([-1, 1].some((offset) => neighbour(head, offset).share >= STRONG)) return;
  const { layer, weights, keys } = head;
  const size = weights.length;
  for (let query = 0; query < size; query++)
    for (let key = 0; key < size; key++) {
      const [from, to, weight] = [parts[query], parts[key], weights[query][key]];
      const distance = to.step - from.step;
      if (weight < STRONG_LINK || !from.looking || !to.content || Math.abs(distance) < 2 || (from.group === to.group && from.text === to.text)) continue;
      const telling = Math.sqrt(Math.log2(1 + Math.min(Math.abs(distance), FAR))) * (from.referring && distance < 0 ? REFERRED : 1) * (layer ? 1 : EMBEDDED) * (from.text === to.text ? 1 : ACROSS);
      yield { layer, head: head.head, query, key, weight, expected: Math.max(0, keys[key] * size - weight) / Math.max(1, size - 1), telling };
    }
}

/** 1 - the cosine of the looking word's last state with what it is without the link. */
function moved(model: Model, { pass }: Run, { layer, head, query, key }: Link): number {
  const { d } = model.about.config;
  const { last } = rerun(model, pass, [{ layer, head, how: "edge", edge: [query, key] }]);
  const at = query * d;
  return 1 - dot(last, at, pass.last, at, d) / Math.sqrt(dot(last, at, last, at, d) * dot(pass.last, at, pass.last, at, d));
}

function links(model: Model, run: Run, heads: readonly Head[], parts: readonly Part[]): Finding[] {
  const first = heads.flatMap((head) => Array.from(linksOf(head, parts))).sort((a, b) => score(b) - score(a)).slice(0, CLOSER);
  const of = ({ layer, head }: Link): Head => heads.find((one) => one.layer === layer && one.head === head)!;
  const closer = first.map((link) => ({ ...link, expected: Math.max(link.expected, usual(of(link), link)) })).sort((a, b) => score(b) - score(a));
  const seen = new Set<string>();
  const best = closer.filter((link) => {
    const looking = `${parts[link.query].place}`;
    const pair = [link.query, link.key].map((at) => parts[at].word.toLowerCase()).sort().join(" ");
    if (link.weight <= link.expected || surprise(link.weight, link.expected) < LEAST_SURPRISE || seen.has(looking) || seen.has(pair)) return false;
    seen.add(looking).add(pair);
    return true;
  });
  // cut as many as it takes: those that move the output come first
  const [moving, idle]: Link[][] = [[], []];
  for (const link of best.slice(0, CUT)) {
    if (moving.length < LINKS) (run.ablated.length || moved(model, run, link) >= LEAST_MOVED ? moving : idle).push(link);
  }
  return [...moving, ...idle, ...best.slice(CUT)].slice(0, LINKS).map(({ layer, head, query, key, weight, expected }) => ({
    kind: "link", numbers: { weight, expected }, cells: [{ layer, head, query, key }], token: null, tokens: [],
    sentence: `${quoted(parts, query)} looks at ${quoted(parts, key)}: head ${layer}.${head}, weight ${short(weight)}; ${short(expected)} is usual for it.`,
  }));
}

function neighbours(heads: readonly Head[], parts: readonly Part[]): Finding[] {
  return ([["previous", -1, "before"], ["next", 1, "after"]] as const).flatMap(([kind, offset, word]) => {
    const measured = heads.map((head) => ({ head, ...neighbour(head, offset) }));
    const strong = measured.filter(({ share, expected }) => share > Math.max(STRONG, expected) && surprise(share, expected) >= LEAST_SURPRISE);
    const [best] = strong.sort((a, b) => surprise(b.share, b.expected) - surprise(a.share, a.expected));
    if (!best) return [];
    const { head: { layer, head, weights }, share, expected } = best;
    const rows = parts.flatMap(({ content }, i) => (content && i + offset in parts ? [i] : [])).sort((a, b) => weights[b][b + offset] - weights[a][a + offset]);
    const query = rows.length ? rows[0] : null;
    const sentence = `${share >= EVERY ? "Every word looks" : "Words look"} at the one ${word}: head ${layer}.${head}, ${percent(share)} of its weight.`;
    return [{ kind, sentence, numbers: { weight: share, expected }, cells: [{ layer, head, query, key: query === null ? null : query + offset }], token: null, tokens: [] }];
  });
}

/** All heads that rest on [CLS], [SEP] or punctuation, as one. */
function sinks(heads: readonly Head[], parts: readonly Part[], { norms }: Writes, perLayer: number, tokens: readonly string[]): Finding[] {
  const size = parts.length;
  const resting = heads.flatMap(({ layer, head, weights, keys }) => (["cls", "sep", "punctuation"] as const).flatMap((role) => {
    const on = parts.flatMap((part, j) => (part.role === role ? [j] : []));
    const weight = on.reduce((sum, j) => sum + keys[j], 0);
    if (weight <= STRONG) return [];
    const sized = (row: Float32Array, j: number): number => row[j] * norms[(layer * perLayer + head) * size + j];
    const written = mean(weights.map((row) => on.reduce((sum, j) => sum + sized(row, j), 0) / (row.reduce((sum, _, j) => sum + sized(row, j), 0) || 1)));
    return [{ layer, head, role, on, weight, written, weights }];
  })).sort((a, b) => b.weight - a.weight);
  if (!resting.length) return [];
  const [weight, written] = [mean(resting.map((one) => one.weight)), mean(resting.map((one) => one.written))];
  if (surprise(weight, written) < LEAST_SURPRISE) return [];
  const count = (role: string): number => resting.filter((one) => one.role === role).length;
  const roles = [...new Set(resting.map(({ role }) => role))].sort((a, b) => count(b) - count(a));
  const names = roles.map((role) => (role === "punctuation" ? role : tokens[parts.findIndex((part) => part.role === role)]));
  const [{ layer, head, on, weights }, ...others] = resting;
  const cells = parts.flatMap((part, i) => (part.role === "cls" || part.role === "sep" ? [] : on.map((j) => ({ i, j })))).sort((a, b) => weights[b.i][b.j] - weights[a.i][a.j]);
  const rest = resting.length === 1 ? "rests" : "rest";
  return [{
    kind: "sink", numbers: { heads: resting.length, of: heads.length, weight, written }, token: names[0], tokens: names,
    sentence: `${resting.length} of ${heads.length} heads ${rest} on ${names.join(" or ")}: ${percent(weight)} of their weight, ${percent(written)} of what they write.`,
    cells: [{ layer, head, query: cells[0]?.i ?? null, key: cells[0]?.j ?? null }, ...others.map((one) => ({ layer: one.layer, head: one.head, query: null, key: null }))],
  }];
}

/** At most five findings, and the cell to open on: the first link's, else the first there is. */
export function findings(model: Model, run: Run, written: Writes): { findings: Finding[]; opening: Cell | null } {
  const { prefix, unknown, tokens } = model.about.vocabulary;
  if (run.encoded.special.filter((special) => !special).length < 2) return { findings: [], opening: null };
  const parts = contentOf(run.encoded, run.text, run.pair, prefix, tokens[unknown]);
  const heads = headsOf(model, run);
  const found = [...links(model, run, heads, parts), ...neighbours(heads, parts), ...sinks(heads, parts, written, model.about.config.heads, run.encoded.tokens)];
  return { findings: found, opening: found.find(({ cells }) => cells[0].query !== null)?.cells[0] ?? null };
}
