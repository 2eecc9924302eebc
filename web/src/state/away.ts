// What a trace came without: pictures and numbers of its heads, and, where only the header is here, its parts when somebody looks at them.
import { effect, signal } from "@preact/signals";
import { blank, blankThumbs, massTokens } from "../heads/catalog";
import { fromKernel, told } from "../notebook";
import { hasModel, start, unanswered } from "../model/remote";
import { post } from "../model/server";
import { at, doc, docs, headOf, type Doc } from "./store";
import type { Questions } from "../trace/desk";
import { engine, type Urgency } from "../trace/engine";
import type { Groups } from "../trace/cells";
import type { HeadMeasure } from "../trace/measures";
import { plain, size } from "../trace/parts";
import type { TraceInfo } from "../trace/trace";
import { say } from "../words";

/** Why parts can't be fetched; null while they can. */
export const lost = signal<string | null>(null);
/** Raised to try again. */
export const tries = signal(0);

/** Requests that a reader waits for: background work pauses meanwhile, and a moment longer. */
let waiting = 0;
let quietFrom = 0;
const PAUSE = 150;

async function fromServer(request: object, left?: AbortSignal): Promise<Float32Array> {
  const response = await post("api/part", request, left ?? null);
  return new Float32Array(await response.arrayBuffer());
}

/** A kernel may be busy for long: after a while the page says so, and waits on. */
const LONG = 5000;

async function awaited(request: object): Promise<Float32Array> {
  const late = setTimeout(() => { lost.value = say("kernel"); }, LONG);
  try {
    return await fromKernel(request);
  } finally {
    clearTimeout(late);
  }
}

/** A part of a trace, as numbers. */
async function part(remote: string, request: object, urgency: Urgency, left?: AbortSignal): Promise<Float32Array> {
  const foreground = urgency !== "background";
  if (foreground) waiting++;
  else while (waiting || performance.now() < quietFrom) await new Promise((later) => setTimeout(later, PAUSE / 4));
  try {
    const numbers = await (told === null ? fromServer : awaited)({ ...request, trace: remote }, left);
    if (left?.aborted) throw left.reason;
    lost.value = null;
    return numbers;
  } catch (error) {
    if (left?.aborted) throw left.reason;
    lost.value = unanswered(error);
    throw new Error(lost.value);
  } finally {
    if (foreground) {
      waiting--;
      quietFrom = performance.now() + PAUSE;
    }
  }
}

const awayDoc = (id: number): Doc | null => docs.value.find((held) => held.id === id && held.info.away) ?? null;

/** The tokens of each row or column; null where each is a token. */
const joined = (groups: Groups, all: number): object | null =>
  plain(groups, all) ? null : { starts: [...groups.starts], members: [...groups.members] };

type Tile = Questions["tile"]["ask"];
type Masses = Questions["masses"]["ask"];

/** A picture of a head, of every nth row. */
export function tileOf({ remote, info }: Doc, { view, trace: _, minus: __, mean: ___, ...ask }: Tile, every: number, urgency: Urgency, left?: AbortSignal): Promise<Float32Array> {
  const [rows, columns] = [joined(view.rows, info.queries.tokens.length), joined(view.columns, info.keys.tokens.length)];
  return part(remote!, { want: "tile", ...ask, rows, columns, renormalise: view.renormalise, every }, urgency, left);
}

/** Number of rows of which one is computed, so that a picture of them appears at once. */
const SAMPLED_CELLS = 1 << 21;
export const everyNth = ({ view }: { view: { rows: Groups; columns: Groups } }): number =>
  Math.ceil((size(view.rows) * size(view.columns)) / SAMPLED_CELLS);

/** What a head writes at a query, and the size of a value: |v_j W_O|, |c_i W_O|, and the share of the latter. */
export interface Written {
  norm?: number | undefined;
  size?: number | undefined;
  share?: number | undefined;
}

export async function written({ remote, info }: Doc, layer: number, head: number, i: number, j: number): Promise<Written> {
  const n = layer * info.heads + head;
  if (!info.away) {
    const index = n * info.queries.tokens.length + i;
    return { norm: info.valueNorms?.[n * info.keys.tokens.length + j], size: info.writes?.[index], share: info.shares?.[index] };
  }
  if (!info.hasNorms) return {};
  const [norms, writes] = await Promise.all([
    part(remote!, { want: "norms", layer, head }, "now"), part(remote!, { want: "writes", layer, query: i }, "now"),
  ]);
  return { norm: norms[j], size: writes[head], share: writes[info.heads + head] };
}

/** What stands beside the shares of a followed word, as `TraceInfo.beside` has it; null where no model can be asked. */
export async function besideOf({ remote, info }: Doc, query: number): Promise<Float32Array | null> {
  if (info.beside && info.opening?.query === query) return info.beside;
  return hasModel.value && !start.value.model ? fromServer({ want: "beside", trace: remote, query }).catch(() => null) : null;
}

/** Heads that are measured at a time. */
const MEASURED = 4;

/** Heads' numbers as the server sends them: 1 for each whose weights are not numbers, their statistics, their thumbnails. */
async function measureHere({ id }: Doc, names: string[], layer: number, from: number, to: number): Promise<Float32Array> {
  const found: HeadMeasure[] = [];
  for (let head = from; head < to; head++) found.push(await engine.ask("measure", { trace: id, layer, head, masses: massTokens() }, undefined, "background"));
  return Float32Array.from([...found.map(() => 0), ...names.flatMap((name) => found.map(({ statistics }) => statistics[name] ?? NaN)), ...found.flatMap(({ thumb }) => [...thumb])]);
}

/** Thumbnails and statistics, a few heads at a time, those of the layer in view first. */
async function measure(opened: Doc): Promise<void> {
  const { away, heads, layers, queries, keys } = opened.info;
  const all = layers.length * heads;
  const thumbs = blankThumbs(all, queries.tokens.length, keys.tokens.length);
  let statistics = blank(all);
  const names = Object.keys(statistics);
  const broken = new Set(opened.info.broken);
  const awaited = new Set(Array.from({ length: all }, (_, n) => n));
  const put = (): void => {
    const more: Partial<TraceInfo> = { thumbs: { ...thumbs }, statistics, awaited: new Set(awaited), broken: new Set(broken) };
    docs.value = docs.value.map((other) => (other.id === opened.id ? { ...other, info: { ...other.info, ...more } } : other));
  };
  const isOpen = (): boolean => docs.value.some(({ id }) => id === opened.id);
  put();
  while (awaited.size) {
    const seen = doc.peek()?.id === opened.id ? at.peek().layer : 0;
    const first = [...awaited].find((n) => n >= seen * heads) ?? awaited.values().next().value!;
    const { layer, head: from } = headOf(opened.info, first);
    const to = Math.min(heads, from + MEASURED);
    let numbers: Float32Array;
    try {
      numbers = away ? await part(opened.remote!, { want: "measures", layer, heads: [from, to] }, "background") : await measureHere(opened, names, layer, from, to);
    } catch (error) {
      if (!isOpen()) return;
      if (!away) throw error;
      const before = tries.peek();
      await new Promise<void>((again) => {
        const stop = effect(() => { if (tries.value !== before) queueMicrotask(() => { stop(); again(); }); });
      });
      continue;
    }
    if (!isOpen()) return;
    const count = to - from;
    statistics = Object.fromEntries(names.map((name, at) => {
      const values = statistics[name].slice();
      values.set(numbers.subarray((at + 1) * count, (at + 2) * count), first);
      return [name, values];
    }));
    thumbs.data.set(numbers.subarray((names.length + 1) * count), first * thumbs.rows * thumbs.columns);
    for (let n = 0; n < count; n++) {
      if (numbers[n]) broken.add(first + n);
      awaited.delete(first + n);
    }
    put();
  }
}

/** Measure the traces that are opened, and answer for the worker where it lacks the arrays. */
export function followAway(): void {
  const measured = new Set<number>();
  effect(() => {
    for (const opened of docs.value) {
      const { away, thumbs, statistics } = opened.info;
      if ((!away && thumbs && statistics) || measured.has(opened.id)) continue;
      measured.add(opened.id);
      queueMicrotask(() => void measure(opened));
    }
  });
  engine.supplier = {
    answer(kind, ask, urgency, left) {
      const of = awayDoc((ask as { trace?: number }).trace ?? -1);
      if (!of) return null;
      if (kind === "tile" && !(ask as Tile).minus && !(ask as Tile).mean) return tileOf(of, ask as Tile, 1, urgency, left);
      if (kind !== "masses") return null;
      const { trace: _, queries, keys, kept, ...rest } = ask as Masses;
      const list = (places: ArrayLike<number>): number[] => Array.from(places);
      return part(of.remote!, { want: "masses", ...rest, queries: list(queries), keys: list(keys), kept: kept && list(kept) }, urgency, left);
    },
    piece({ trace, ...piece }, urgency) {
      const of = awayDoc(trace);
      return of ? part(of.remote!, piece, urgency) : Promise.reject(new Error(say("lost")));
    },
  };
}
