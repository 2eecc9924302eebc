// Statistics of heads: from the file, and those that depend on the selection or the comparison.
import { computed, signal } from "@preact/signals";
import { MOVED } from "../drawing/colour";
import * as state from "../state/state";
import { betweenSets, pinnedCell, question } from "./asking";
import { blankThumbs, catalog } from "./catalog";
import { between, gatherNumbers, weight, type Coming } from "./pinned";
import { apart, asked, isDuel, joint, otherDoc, otherShown, partner } from "../state/comparing";
import { regroup } from "../text/shown";
import { each, gather } from "./gathering";
import { at, column, doc, row } from "../state/store";
import { effects } from "../model/runs";
import { engine } from "../trace/engine";
import type { Difference } from "../trace/difference";
import { everyRow, size } from "../trace/parts";
import type { TraceInfo } from "../trace/trace";
import { guesses } from "./guesses";
import { sifted } from "./sifted";

/** A head whose mean entropy is above this share of log S is called near-uniform, as in headscope.verify. */
const UNIFORM = 0.98;

/** The statistics that the selected trace has, in Python's order. */
export const known = computed<string[]>(() => {
  const { info } = doc.value!;
  const names = catalog.value.map(({ name }) => name);
  if (info.awaited.size === info.layers.length * info.heads) return names;
  return names.filter((name) => info.statistics?.[name]?.some((value) => !Number.isNaN(value)));
});

export const alike = signal<Coming | null>(null);
/** How much of each head's weight moves from A to B, and pictures of that: a byte a cell, `STILL` where nothing does. */
export const changed = signal<(Coming & Pick<TraceInfo, "thumbs">) | null>(null);
export const STILL = 128;

/** The weight of the pinned cell in B, and between two sets of tokens. */
const weightB = signal<Coming | null>(null);
export const mass = signal<Coming | null>(null);

/** Real rows, not thumbnails: how far every head is from the selected one, and from the same head of the second trace. */
export function followNumbers(): void {
  gatherNumbers(alike, () => {
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
  gather(changed, 6, () => {
    const [a, b, both] = [doc.value, otherDoc.value, joint.value];
    if (!a || !b || !both || apart.value) return null;
    if (state.pane.value !== "compare" && state.statistic.value !== "change") return null;
    const { layers: { length: layers }, heads } = a.info;
    const key = [a.id, b.id, state.filter.value, state.special.value, state.merged.value].join("/");
    const measured = both.rows.map((_, n) => [n]).filter(([n]) => n % everyRow(both.rows.length) === 0);
    const [view, other] = [both.a, both.b].map((whole) => ({ ...whole, rows: regroup(whole.rows, measured) }));
    const thumbs = blankThumbs(layers * heads, measured.length, size(view.columns));
    thumbs.data.fill(STILL);
    return {
      layers, heads,
      blank: { key, numbers: new Float32Array(layers * heads).fill(NaN), done: 0, thumbs },
      ask: each(heads, changed, key, (layer, head) => engine.ask("moved", {
        trace: a.id, layer, head, mean: null, view, minus: { trace: b.id, layer, head, mean: null, view: other }, height: thumbs.rows, width: thumbs.columns,
      }, undefined, "background")),
      add: ({ numbers: before, thumbs }: NonNullable<typeof changed.value>, answers: ArrayLike<Difference>, from: number) => {
        const [numbers, data] = [before.slice(), thumbs!.data.slice()];
        Array.from(answers).forEach((answer, n) => {
          numbers[from + n] = answer.moved;
          data.set(Uint8Array.from(answer.data, (value) => STILL + Math.sign(value) * Math.round(127 * Math.sqrt(Math.min(1, Math.abs(value) / MOVED)))), (from + n) * answer.data.length);
        });
        return { numbers, thumbs: { ...thumbs!, data } };
      },
    };
  });
  between(weight, () => pinnedCell.value);
  between(weightB, () => {
    const [words, r, c] = [otherShown.value, partner("rows", row.value), partner("columns", column.value)];
    return isDuel.value && words?.rows[r] && words.columns[c] ? question(words.rows[r].tokens, words.columns[c].tokens, otherDoc.value!, words) : null;
  }, otherDoc);
  between(mass, () => (state.statistic.value === "mass" ? betweenSets.value : null));
}

/** (layers * heads) numbers by name; NaN or missing until they are computed. */
export const table = computed(() => {
  const found: Record<string, Float32Array | undefined> = { ...(sifted.value ?? doc.value!.info).statistics };
  if (alike.value) found.similarity = alike.value.numbers;
  if (changed.value) found.change = changed.value.numbers;
  if (weight.value) found.weight = weight.value.numbers;
  const [one, other] = [weight.value?.numbers, weightB.value?.numbers];
  if (one && other) found.gap = one.map((value, n) => other[n] - value);
  if (mass.value) found.mass = mass.value.numbers;
  if (effects.value) found.effect = effects.value;
  if (guesses.value) found.guess = Float32Array.from(guesses.value, (one) => one?.loss ?? NaN);
  return found;
});

/** Progress of the chosen statistic, if incomplete: heads done, of all. */
export const coming = computed<[number, number] | null>(() => {
  const held = { similarity: alike, change: changed, weight, gap: weightB, mass }[asked.value]?.value;
  const { layers: { length: layers }, heads } = doc.value!.info;
  const { done } = held ?? sifted.value ?? { done: Infinity };
  return done < layers * heads ? [done, layers * heads] : null;
});

export const isUniform = (info: TraceInfo, n: number): boolean => {
  const entropy = info.statistics?.entropy?.[n];
  return entropy !== undefined && info.keys.tokens.length > 1 && entropy > UNIFORM * Math.log(info.keys.tokens.length);
};
