// Numbers of every head that arrive layer by layer; of these, the weight of the pinned cell, and which head differs most in it.
import { computed, signal, type Signal } from "@preact/signals";
import * as state from "../state/state";
import { at, doc, type Doc } from "../state/store";
import { engine } from "../trace/engine";
import { largestPlaces } from "../trace/strongest";
import { pinnedCell, type Question } from "./asking";
import { gather, type Ask, type Gathered } from "./gathering";

/** Numbers of heads that are computed on demand, layer by layer; NaN until then. */
export interface Coming extends Gathered {
  numbers: Float32Array;
}

export function gatherNumbers(target: Signal<Coming | null>, wanted: () => { key: string; layers: number; heads: number; ask: Ask<number> } | null): void {
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

export const between = (held: Signal<Coming | null>, asks: () => Question | null, of: Signal<Doc | null> = doc): void =>
  gatherNumbers(held, () => {
    const [one, sought] = [of.value, asks()];
    if (!one || !sought) return null;
    const { key, ...sets } = sought;
    return {
      key, layers: one.info.layers.length, heads: one.info.heads,
      ask: (layer) => engine.ask("masses", { trace: one.id, layer, ...sets }, undefined, "background"),
    };
  });

/** The weight of the pinned cell. */
export const weight = signal<Coming | null>(null);

/** The weight of the pinned cell in every head, once all are there. */
export const pinnedWeights = computed<Float32Array | null>(() => {
  const held = weight.value;
  return held && held.key === pinnedCell.value?.key && held.done === held.numbers.length ? held.numbers : null;
});

/** The head that differs most from the one in view: in the pinned cell's weight, else in entropy; null where none does, or until it is known. B's where nothing was chosen for B. */
export const proposed = computed<number | null>(() => {
  if (state.pane.value !== "compare") return null;
  const numbers = pinnedCell.value ? pinnedWeights.value : doc.value?.info.statistics?.entropy;
  const apart = numbers?.map((value) => Math.abs(value - numbers[at.value.n])) ?? new Float32Array(0);
  const [n] = largestPlaces(apart, 1);
  return apart[n] > 0 ? n : null;
});
