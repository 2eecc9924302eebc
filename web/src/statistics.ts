// Statistics of heads: from the file, and those that depend on the selection or the comparison.
import { computed, effect, signal, type Signal } from "@preact/signals";
import * as state from "./state";
import { catalog } from "./catalog";
import { apart } from "./comparing";
import { at, doc, failure, otherDoc } from "./store";
import { engine } from "./trace/engine";
import type { TraceInfo } from "./trace/trace";

/** A head whose mean entropy is above this share of log S is called near-uniform, as in headscope.verify. */
export const UNIFORM = 0.98;

/** Numbers of heads that are computed on demand, layer by layer; NaN until then. */
export interface Coming {
  key: string;
  numbers: Float32Array;
  done: number;
}

/** The statistics that the selected trace has, in Python's order. */
export const known = computed<string[]>(() => {
  const measured = doc.value?.info.statistics ?? {};
  return catalog.value.map(({ name }) => name).filter((name) => measured[name]?.some((value) => !Number.isNaN(value)));
});

export const alike = signal<Coming | null>(null);
export const changed = signal<Coming | null>(null);

type Ask = (layer: number, head: number) => Promise<number>;

/** Request one layer after the other until the selection changes; complete results are cached. */
function follow(target: Signal<Coming | null>, wanted: () => { key: string; layers: number; heads: number; ask: Ask } | null): void {
  const complete = new Map<string, Coming>();
  effect(() => {
    const now = wanted();
    if (!now) {
      target.value = null;
      return;
    }
    const { key, layers, heads, ask } = now;
    const known = complete.get(key);
    if (known) {
      target.value = known;
      return;
    }
    if (target.peek()?.key === key) return;
    target.value = { key, numbers: new Float32Array(layers * heads).fill(NaN), done: 0 };
    void (async () => {
      for (let layer = 0; layer < layers; layer++) {
        const numbers = target.peek()!.numbers.slice();
        for (let head = 0; head < heads; head++) {
          numbers[layer * heads + head] = await ask(layer, head);
          if (target.peek()?.key !== key) return;
        }
        target.value = { key, numbers, done: (layer + 1) * heads };
      }
      complete.set(key, target.peek()!);
      if (complete.size > 64) complete.delete(complete.keys().next().value!);
    })().catch((error: Error) => { if (target.peek()?.key === key) failure.value = error.message; });
  });
}

/** Distances of every head from the selected one, and from the same head of the second trace, by real rows. */
export function followNumbers(): void {
  follow(alike, () => {
    const current = doc.value;
    if (!current || state.statistic.value !== "similarity") return null;
    const { layer, head } = at.value;
    return {
      key: `${current.id}/${layer}/${head}`, layers: current.info.layers.length, heads: current.info.heads,
      ask: (l, h) => engine.ask("distance", { trace: current.id, layer, head, to: { layer: l, head: h } }, undefined, "background"),
    };
  });
  follow(changed, () => {
    const [a, b] = [doc.value, otherDoc.value];
    if (!a || !b || apart(a.info, b.info)) return null;
    if (state.pane.value !== "compare" && state.pane.value !== "causes" && state.statistic.value !== "change") return null;
    return {
      key: `${a.id}/${b.id}`, layers: a.info.layers.length, heads: a.info.heads,
      ask: (layer, head) => engine.ask("change", { trace: a.id, other: b.id, layer, head }, undefined, "background"),
    };
  });
}

/** (layers * heads) numbers by name; NaN or missing until they are computed. */
export const table = computed<Record<string, Float32Array> | null>(() => {
  const info = doc.value?.info;
  if (!info) return null;
  const byName: Record<string, Float32Array> = { ...(info.statistics ?? {}) };
  if (alike.value) byName.similarity = alike.value.numbers;
  if (changed.value) byName.change = changed.value.numbers;
  return byName;
});

/** Progress of the chosen statistic, if incomplete: heads done, of all. */
export const coming = computed<[number, number] | null>(() => {
  const pending = state.statistic.value === "similarity" ? alike.value : state.statistic.value === "change" ? changed.value : null;
  return pending && pending.done < pending.numbers.length ? [pending.done, pending.numbers.length] : null;
});

export const isUniform = (info: TraceInfo, n: number): boolean => {
  const entropy = info.statistics?.entropy?.[n];
  return entropy !== undefined && info.keys.tokens.length > 1 && entropy > UNIFORM * Math.log(info.keys.tokens.length);
};
