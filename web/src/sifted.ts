// Thumbnails and statistics of what the filters leave of each head: computed while they are on.
import { computed, effect, signal } from "@preact/signals";
import { catalog, massTokens } from "./catalog";
import * as state from "./state";
import { doc, failure, shown } from "./store";
import { engine } from "./trace/engine";
import { siftedShare } from "./trace/parts";
import { say } from "./words";
import type { TraceInfo } from "./trace/trace";

/** One in so many queries is measured; `done` heads of all so far, the others blank and NaN. */
interface Sifted extends Pick<TraceInfo, "thumbs" | "statistics"> {
  key: string;
  every: number;
  done: number;
}

/** The numbers of heads with a filter on; null without. */
export const sifted = signal<Sifted | null>(null);

const MOST = 48;
const KEPT = 6;

const wanted = computed(() => {
  const [now, words] = [doc.value, shown.value];
  if (!now || !words) return null;
  const { info } = now;
  if (info.away) return null; // it would take every head's q and k; the grid says that its pictures are of the whole
  const normed = state.normed.value && info.valueNorms !== null;
  const hides = words.view.rows.members.length < info.queries.tokens.length || words.view.columns.members.length < info.keys.tokens.length;
  if ((!hides && !state.merged.value && !normed) || !words.rows.length || !words.columns.length) return null;
  const key = [now.id, state.filter.value, state.special.value, state.merged.value, normed].join("/");
  return { key, id: now.id, heads: info.heads, layers: info.layers.length, view: words.view, rows: words.rows.length, columns: words.columns.length, normed };
});

export function followSifted(): void {
  const complete = new Map<string, Sifted>();
  effect(() => {
    const now = wanted.value;
    if (!now || sifted.peek()?.key === now.key) {
      if (!now) sifted.value = null;
      return;
    }
    const { key, id, heads, layers, view, normed } = now;
    const known = complete.get(key);
    const [rows, columns, count] = [Math.min(MOST, now.rows), Math.min(MOST, now.columns), heads * layers];
    sifted.value = known ?? {
      key, every: siftedShare(view), done: 0, thumbs: { data: new Uint8Array(count * rows * columns), rows, columns },
      statistics: Object.fromEntries(catalog.peek().map(({ name }) => [name, new Float32Array(count).fill(NaN)])),
    };
    if (known) return;
    void (async () => {
      for (let layer = 0; layer < layers; layer++) {
        const found = [];
        for (let head = 0; head < heads && sifted.peek()?.key === key; head++) {
          found.push(await engine.ask("measure", { trace: id, layer, head, masses: massTokens(), view, normed }, undefined, "background"));
        }
        const before = sifted.peek();
        if (before?.key !== key) return;
        const data = before.thumbs!.data.slice();
        const statistics = Object.fromEntries(Object.entries(before.statistics!).map(([name, numbers]) => [name, numbers.slice()]));
        found.forEach((measured, head) => {
          data.set(measured.thumb, (layer * heads + head) * rows * columns);
          for (const [name, value] of Object.entries(measured.statistics)) if (statistics[name]) statistics[name][layer * heads + head] = value;
        });
        sifted.value = { ...before, done: (layer + 1) * heads, thumbs: { data, rows, columns }, statistics };
      }
      complete.set(key, sifted.peek()!);
      if (complete.size > KEPT) complete.delete(complete.keys().next().value!);
    })().catch((error: Error) => { if (sifted.peek()?.key === key) failure.value = say("head_refused", { why: error.message }); });
  });
}
