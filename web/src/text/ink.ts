// The ink of the text: a number for each word, for what the chosen words look at, or for which words look at them.
import { computed, effect, signal } from "@preact/signals";
import * as state from "../state/state";
import { askOf, current, wanted, wantedKey, type Picture } from "../drawing/pictures";
import { shown } from "../state/store";
import { sides, type Side } from "../heads/asking";
import { engine } from "../trace/engine";

/** The side whose words the ink is about. */
export const subjectSide = (): Side => (state.direction.value === "from" ? "row" : "column");

/** The words that the ink is about, as rows or columns of the picture: hovered, else chosen, else pinned. */
export const subject = computed<number[]>(() => {
  const { hover, set, pinned } = sides(subjectSide());
  if (hover.value !== null) return [hover.value];
  const of = shown.value![`${subjectSide()}Of`];
  const chosen = [...new Set(set.value.map((place) => of[place]))].filter((at) => at >= 0);
  return chosen.length ? chosen : pinned.value === null ? [] : [pinned.value];
});

export interface Ink {
  direction: state.Direction;
  numbers: Float32Array;
}

export const ink = signal<Ink | null>(null);

/** From every cell of a picture: the mean of these rows, or the sums over these columns. */
export function inkOf({ rows, columns }: Picture, full: Float32Array, direction: state.Direction, places: readonly number[]): Float32Array {
  const out = new Float32Array(direction === "from" ? columns : rows);
  if (direction === "from") for (const r of places) for (let c = 0; c < columns; c++) out[c] += full[r * columns + c] / places.length;
  else for (const c of places) for (let r = 0; r < rows; r++) out[r] += full[r * columns + c];
  return out;
}

/** True if every query is meant, because nothing is chosen. */
export const isEvery = computed(() => !subject.value.length && state.direction.value === "from");

export function followInk(): void {
  let turn = 0;
  effect(() => {
    const [now, picture, direction] = [wanted.value, current.value, state.direction.value];
    const ticket = ++turn;
    if (!now || !picture || state.mode.value !== "text") {
      ink.value = null;
      return;
    }
    const fresh = picture.full && picture.key === wantedKey(now) ? picture.full : null;
    const places = subject.value.length || !fresh || direction === "to" ? subject.value : Array.from({ length: picture.rows }, (_, r) => r);
    if (!places.length) ink.value = null;
    else if (fresh) ink.value = { direction, numbers: inkOf(picture, fresh, direction, places) };
    else if (picture.rows && !picture.full) {
      engine.ask("profile", { ...askOf(now), side: subjectSide(), places: [...places] }, "ink")
        .then((numbers) => ({ direction, numbers }), () => null).then((found) => { if (ticket === turn) ink.value = found; });
    }
  });
}
