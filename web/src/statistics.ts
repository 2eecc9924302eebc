// Statistics of heads: from the file, and those that depend on the selection or the comparison.
import { computed, signal, type Signal } from "@preact/signals";
import * as state from "./state";
import { betweenSets, pinnedCell, type Question } from "./asking";
import { catalog } from "./catalog";
import { apart, tokenPairs } from "./comparing";
import { each, gather, type Ask, type Gathered } from "./gathering";
import { at, doc, otherDoc } from "./store";
import { effects } from "./runs";
import { engine } from "./trace/engine";
import { everyRow } from "./trace/parts";
import type { TraceInfo } from "./trace/trace";
import { sifted } from "./sifted";

/** A head whose mean entropy is above this share of log S is called near-uniform, as in headscope.verify. */
export const UNIFORM = 0.98;

/** Numbers of heads that are computed on demand, layer by layer; NaN until then. */
export interface Coming extends Gathered {
  numbers: Float32Array;
}

/** The statistics that the selected trace has, in Python's order. */
export const known = computed<string[]>(() => {
  const info = doc.value?.info;
  const measured = info?.statistics ?? {};
  const names = catalog.value.map(({ name }) => name);
  if (info && info.awaited.size === info.layers.length * info.heads) return names;
  return names.filter((name) => measured[name]?.some((value) => !Number.isNaN(value)));
});

export const alike = signal<Coming | null>(null);
export const changed = signal<Coming | null>(null);

/** The weight of the pinned cell, and between two sets of tokens. */
export const weight = signal<Coming | null>(null);
export const mass = signal<Coming | null>(null);

function follow(target: Signal<Coming | null>, wanted: () => { key: string; layers: number; heads: number; ask: Ask<number> } | null): void {
  gather(target, 64, () => {
    const now = wanted();
    return now && {
      ...now, blank: { key: now.key, numbers: new Float32Array(now.layers * now.heads).fill(NaN), done: 0 },
      add: ({ numbers: before }: Coming, answers: ArrayLike<number>, from: number) => {
        const numbers = before.slice();
        numbers.set(answers, from);
        return { numbers };
      },
    };
  });
}

const between = (held: Signal<Coming | null>, question: () => Question | null): void =>
  follow(held, () => {
    const [one, asked] = [doc.value, question()];
    if (!one || !asked) return null;
    const { key, ...sets } = asked;
    return {
      key, layers: one.info.layers.length, heads: one.info.heads,
      ask: (layer) => engine.ask("masses", { trace: one.id, layer, ...sets }, undefined, "background"),
    };
  });

/** Real rows, not thumbnails: how far every head is from the selected one, and from the same head of the second trace. */
export function followNumbers(): void {
  follow(alike, () => {
    const one = doc.value;
    if (!one || state.statistic.value !== "similarity") return null;
    const { layer, head } = at.value;
    const key = `${one.id}/${layer}/${head}`;
    return {
      key, layers: one.info.layers.length, heads: one.info.heads,
      ask: each(one.info.heads, alike, key, (l, h) =>
        engine.ask("distance", { trace: one.id, layer, head, to: { layer: l, head: h } }, undefined, "background")),
    };
  });
  follow(changed, () => {
    const [a, b] = [doc.value, otherDoc.value];
    if (!a || !b || apart(a.info, b.info)) return null;
    if (state.pane.value !== "compare" && state.pane.value !== "causes" && state.statistic.value !== "change") return null;
    const key = `${a.id}/${b.id}`;
    const aligned = tokenPairs.value!;
    const both = Array.from(aligned.rows.a.keys()).filter((n) => aligned.rows.a[n] >= 0 && aligned.rows.b[n] >= 0);
    const measured = both.filter((_, n) => n % everyRow(both.length) === 0);
    const rows = { a: Int32Array.from(measured, (n) => aligned.rows.a[n]), b: Int32Array.from(measured, (n) => aligned.rows.b[n]) };
    return {
      key, layers: a.info.layers.length, heads: a.info.heads,
      ask: each(a.info.heads, changed, key, (layer, head) =>
        engine.ask("change", { trace: a.id, other: b.id, layer, head, rows, keys: aligned.columns }, undefined, "background")),
    };
  });
  between(weight, () => pinnedCell.value);
  between(mass, () => (state.statistic.value === "mass" ? betweenSets.value : null));
}

/** (layers * heads) numbers by name; NaN or missing until they are computed. */
export const table = computed<Record<string, Float32Array> | null>(() => {
  const info = doc.value?.info;
  if (!info) return null;
  const found: Record<string, Float32Array> = { ...((sifted.value ?? info).statistics ?? {}) };
  if (alike.value) found.similarity = alike.value.numbers;
  if (changed.value) found.change = changed.value.numbers;
  if (weight.value) found.weight = weight.value.numbers;
  if (mass.value) found.mass = mass.value.numbers;
  if (effects.value) found.effect = effects.value;
  return found;
});

/** Progress of the chosen statistic, if incomplete: heads done, of all. */
export const coming = computed<[number, number] | null>(() => {
  const held = { similarity: alike, change: changed, weight, mass }[state.statistic.value]?.value;
  const all = (doc.value?.info.layers.length ?? 0) * (doc.value?.info.heads ?? 0);
  if (!held && sifted.value && sifted.value.done < all) return [sifted.value.done, all];
  return held && held.done < held.numbers.length ? [held.done, held.numbers.length] : null;
});

export const isUniform = (info: TraceInfo, n: number): boolean => {
  const entropy = info.statistics?.entropy?.[n];
  return entropy !== undefined && info.keys.tokens.length > 1 && entropy > UNIFORM * Math.log(info.keys.tokens.length);
};
