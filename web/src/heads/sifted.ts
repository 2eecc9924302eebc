// Thumbnails and statistics of what the filters leave of each head: computed while they are on.
import { signal } from "@preact/signals";
import { blank, blankThumbs, massTokens } from "./catalog";
import * as state from "../state/state";
import { each, gather, type Gathered } from "./gathering";
import { doc, shown } from "../state/store";
import { engine } from "../trace/engine";
import { siftedShare } from "../trace/parts";
import type { HeadMeasure } from "../trace/measures";
import type { TraceInfo } from "../trace/trace";

/** One in so many queries is measured; `done` heads of all so far, the others blank and NaN. */
interface Sifted extends Gathered, Pick<TraceInfo, "thumbs" | "statistics"> {
  every: number;
}

/** The numbers of heads with a filter on; null without. */
export const sifted = signal<Sifted | null>(null);

const KEPT = 6;

export function followSifted(): void {
  gather(sifted, KEPT, () => {
    const [now, words] = [doc.value, shown.value];
    if (!now || !words) return null;
    const { id, info: { away, heads, keys, layers: { length: layers }, queries, valueNorms } } = now;
    if (away) return null; // it would take every head's q and k; the grid says that its pictures are of the whole
    const normed = state.normed.value && valueNorms !== null;
    const { rows: { length: rows }, columns: { length: columns }, view } = words;
    const hides = view.rows.members.length < queries.tokens.length || view.columns.members.length < keys.tokens.length;
    if ((!hides && !state.merged.value && !normed) || !rows || !columns) return null;
    const key = [id, state.filter.value, state.special.value, state.merged.value, normed].join("/");
    const thumbs = blankThumbs(heads * layers, rows, columns);
    return {
      layers, heads,
      blank: { key, every: siftedShare(view), done: 0, thumbs, statistics: blank(heads * layers) },
      ask: each(heads, sifted, key, (layer, head) => engine.ask("measure", { trace: id, layer, head, masses: massTokens(), view, normed }, undefined, "background")),
      add: ({ thumbs, statistics: before }: Sifted, answers: ArrayLike<HeadMeasure>, from: number) => {
        const data = thumbs!.data.slice();
        const statistics = Object.fromEntries(Object.entries(before!).map(([name, numbers]) => [name, numbers.slice()]));
        Array.from(answers).forEach((measured, n) => {
          data.set(measured.thumb, (from + n) * measured.thumb.length);
          for (const [name, value] of Object.entries(measured.statistics)) if (statistics[name]) statistics[name][from + n] = value;
        });
        return { thumbs: { ...thumbs!, data }, statistics };
      },
    };
  });
}
