// What the grid is asked: the weight of the pinned cell, or the weight from one set of tokens to another.
import { batch, computed } from "@preact/signals";
import * as state from "../state/state";
import { column, doc, row, shown, type Doc } from "../state/store";
import type { Label, Shown } from "../text/shown";
import type { Sets } from "../trace/masses";

/** A question about tokens, and the same as text, to know it again. */
export interface Question extends Sets {
  key: string;
}

export const question = (queries: readonly number[], keys: readonly number[], one: Doc = doc.value!, { view }: Shown = shown.value!): Question => {
  const kept = view.renormalise ? view.columns.members : null;
  const normed = state.normed.value && one.info.hasNorms && state.pane.value !== "compare";
  const more = kept ? `${state.filter.value}/${kept.length}` : "";
  return { queries, keys, kept, normed, key: `${one.id}/${queries.join(".")}/${keys.join(".")}/${more}/${normed}` };
};

/** The pinned cell, as the picture shows it: every piece of a joined word. */
export const pinnedCell = computed<Question | null>(() => {
  const words = shown.value;
  if (!words || row.value === null || column.value === null) return null;
  return question(words.rows[row.value].tokens, words.columns[column.value].tokens);
});

/** The sets of the question: what was chosen, else what is pinned; from every query where none is. */
export const chosenSets = computed<{ from: readonly number[]; to: readonly number[] } | null>(() => {
  const words = shown.value;
  if (!words) return null;
  const { queries, keys } = doc.value!.info;
  /** A set may have been chosen in a longer text. */
  const [from, to] = [state.from.value.filter((place) => place < queries.tokens.length), state.to.value.filter((place) => place < keys.tokens.length)];
  return {
    from: from.length ? from : row.value === null ? [] : words.rows[row.value].tokens,
    to: to.length ? to : column.value === null ? [] : words.columns[column.value].tokens,
  };
});

export const betweenSets = computed<Question | null>(() => {
  const sets = chosenSets.value;
  if (!sets || !sets.to.length) return null;
  return question(sets.from.length ? sets.from : doc.value!.info.queries.tokens.map((_, place) => place), sets.to);
});

export type Side = "row" | "column";

/** What the page holds of a side: the place under the pointer, the pinned place, its token, and the chosen set. */
export const sides = (side: Side) => (side === "row"
  ? { hover: state.hoverRow, pinned: row, held: state.query, set: state.from }
  : { hover: state.hoverColumn, pinned: column, held: state.key, set: state.to });

/** A side's words on the screen; none where there is no text. */
export const labelsOf = (side: Side): Label[] => (side === "row" ? shown.value?.rows : shown.value?.columns) ?? [];

/** Pin a token, or let it go where the reader pinned it before. */
export function pin(side: Side, place: number, { tokens }: { tokens: readonly number[] }): void {
  const { pinned, held } = sides(side);
  const again = pinned.peek() === place && !state.found[side];
  state.found[side] = false;
  held.value = again ? null : tokens[0];
}

/** Put tokens into a set, or take them out where all are in it; the grid is asked about it. */
export function choose(side: Side, places: readonly number[]): void {
  const held = sides(side).set;
  const pinned = (side === "row" ? chosenSets.value?.from : chosenSets.value?.to) ?? [];
  const now = held.value.length ? held.value : pinned;
  const out = held.value.length > 0 && places.every((place) => now.includes(place));
  choosePassage(side, out ? now.filter((place) => !places.includes(place)) : [...new Set([...now, ...places])]);
}

/** A passage instead of what was chosen on this side. */
export function choosePassage(side: Side, places: readonly number[]): void {
  batch(() => {
    sides(side).set.value = places.length ? [...places].sort((a, b) => a - b) : state.NONE;
    state.statistic.value = "mass";
  });
}

export function clearSets(): void {
  batch(() => {
    state.from.value = state.NONE;
    state.to.value = state.NONE;
  });
}
