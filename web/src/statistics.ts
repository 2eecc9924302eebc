// Numbers that belong to heads: those of the file, and those that depend on what is selected or compared.
import { computed, effect, signal, type Signal } from "@preact/signals";
import * as state from "./state";
import { catalog } from "./catalog";
import { apart } from "./comparing";
import { at, doc, failure, otherDoc } from "./store";
import { engine } from "./trace/engine";
import type { TraceInfo } from "./trace/trace";

/** A head whose mean entropy is above this share of log S is called near-uniform, as headscope.verify does. */
export const UNIFORM = 0.98;

/** Numbers of heads that are computed when they are asked for, layer by layer; NaN where they are still to come. */
export interface Coming {
  key: string;
  numbers: Float32Array;
  done: number;
}

/** The statistics of which the trace that is looked at has a number, in Python's order. */
export const known = computed<string[]>(() => {
  const measured = doc.value?.info.statistics ?? {};
  return catalog.value.map(({ name }) => name).filter((name) => measured[name]?.some((value) => !Number.isNaN(value)));
});

export const alike = signal<Coming | null>(null);
export const changed = signal<Coming | null>(null);

type Ask = (layer: number, head: number) => Promise<number>;

/** Ask for one layer after the other, as long as the same is wanted; what was complete once is kept. */
function follow(held: Signal<Coming | null>, wanted: () => { key: string; layers: number; heads: number; ask: Ask } | null): void {
  const complete = new Map<string, Coming>();
  effect(() => {
    const now = wanted();
    if (!now) {
      held.value = null;
      return;
    }
    const { key, layers, heads, ask } = now;
    const known = complete.get(key);
    if (known) {
      held.value = known;
      return;
    }
    if (held.peek()?.key === key) return;
    held.value = { key, numbers: new Float32Array(layers * heads).fill(NaN), done: 0 };
    void (async () => {
      for (let layer = 0; layer < layers; layer++) {
        const numbers = held.peek()!.numbers.slice();
        for (let head = 0; head < heads; head++) {
          numbers[layer * heads + head] = await ask(layer, head);
          if (held.peek()?.key !== key) return;
        }
        held.value = { key, numbers, done: (layer + 1) * heads };
      }
      complete.set(key, held.peek()!);
      if (complete.size > 64) complete.delete(complete.keys().next().value!);
    })().catch((error: Error) => { if (held.peek()?.key === key) failure.value = error.message; });
  });
}

/** Real rows, not thumbnails: how far every head is from the selected one, and from the same head of the second trace. */
export function followNumbers(): void {
  follow(alike, () => {
    const one = doc.value;
    if (!one || state.statistic.value !== "similarity") return null;
    const { layer, head } = at.value;
    return {
      key: `${one.id}/${layer}/${head}`, layers: one.info.layers.length, heads: one.info.heads,
      ask: (l, h) => engine.ask("distance", { trace: one.id, layer, head, to: { layer: l, head: h } }, undefined, "background"),
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

/** (layers * heads) numbers by name; those that are still to come are NaN or not there. */
export const table = computed<Record<string, Float32Array> | null>(() => {
  const info = doc.value?.info;
  if (!info) return null;
  const found: Record<string, Float32Array> = { ...(info.statistics ?? {}) };
  if (alike.value) found.similarity = alike.value.numbers;
  if (changed.value) found.change = changed.value.numbers;
  return found;
});

/** How far the chosen statistic has come, where it is not all there: heads done, of all. */
export const coming = computed<[number, number] | null>(() => {
  const held = state.statistic.value === "similarity" ? alike.value : state.statistic.value === "change" ? changed.value : null;
  return held && held.done < held.numbers.length ? [held.done, held.numbers.length] : null;
});

export const isUniform = (info: TraceInfo, n: number): boolean => {
  const entropy = info.statistics?.entropy?.[n];
  return entropy !== undefined && info.keys.tokens.length > 1 && entropy > UNIFORM * Math.log(info.keys.tokens.length);
};
