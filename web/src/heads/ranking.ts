// Heads in the order of the chosen statistic: as the grid draws them, and as `e` walks through them.
import { batch, computed, signal } from "@preact/signals";
import { divergingAt, MOVED, onScale, sequentialAt, type RGB } from "../drawing/colour";
import * as state from "../state/state";
import { betweenSets, pinnedCell } from "./asking";
import { byNumber, nextPlace } from "./order";
import { asked, isDuel } from "../state/comparing";
import { table } from "./statistics";
import { at, doc, headOf } from "../state/store";
import type { TraceInfo } from "../trace/trace";

export const askedNumbers = computed(() => table.value[asked.value]);

/** Effects and differences have a sign: they are ranked by their size, and coloured by it and by their sign. */
export const isSigned = computed(() => isDuel.value || asked.value === "effect");
const sizes = (numbers: Float32Array): Float32Array => (isSigned.value ? numbers.map(Math.abs) : numbers);

/** By the chosen statistic, without the head that others are held against. */
export const ranked = computed<number[]>(() => {
  const numbers = askedNumbers.value;
  if (!numbers) return [];
  const sorted = byNumber(sizes(numbers), state.order.value !== "low");
  return asked.value === "similarity" ? sorted.filter((n) => n !== at.value.n) : sorted;
});

/** Heads in the order in which they are drawn. */
export const drawn = computed<number[]>(() => {
  const { info } = doc.value!;
  const places = Array.from({ length: info.layers.length * info.heads }, (_, n) => n);
  const numbers = askedNumbers.value;
  if (state.order.value === "place" || !numbers) return places;
  const sorted = byNumber(sizes(numbers), state.order.value === "high");
  const placed = new Set(sorted);
  return [...sorted, ...places.filter((n) => !placed.has(n)).sort((a, b) => a - b)];
});

/** Weights share one scale for every question: 0 to 1. Of other statistics, from the least to the most. */
export const isWeight = computed(() => (asked.value === "weight" || asked.value === "mass") && !state.normed.value);

export const range = computed<[number, number]>(() => {
  const numbers = askedNumbers.value;
  if (isDuel.value) return [-MOVED, MOVED];
  if (isWeight.value || !numbers) return [0, 1];
  let [low, high] = [Infinity, -Infinity];
  for (const value of numbers) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (isSigned.value && low <= high) {
    const most = Math.max(-low, high);
    return [-most, most];
  }
  return low <= high ? [low, high] : [0, 1];
});

/** The colour's place on the map, 0 to 1: weights on the matrix's scale, other statistics evenly. */
export function tone(value: number): number {
  const [low, high] = range.value;
  if (isWeight.value) return onScale(value, 1, state.scale.value);
  if (isSigned.value) return onScale(Math.abs(value), high, "sqrt");
  return high > low ? (value - low) / (high - low) : 0;
}

/** The number's colour. */
export const shade = (value: number, dark: boolean): RGB => (isSigned.value ? divergingAt(Math.sign(value) * tone(value), dark) : sequentialAt(tone(value), dark));

/** The scale's name where it is not an even one. */
export const toneScale = computed<state.Scale>(() => (isWeight.value ? state.scale.value : isSigned.value ? "sqrt" : "linear"));

/** The least number, or size, that is not faded: a share of the range from its lower end. */
export function faint(): number {
  const [low, high] = range.value;
  return isSigned.value ? state.least.value * high : low + state.least.value * (high - low);
}

export function choose(info: TraceInfo, n: number): void {
  batch(() => {
    const { layer, head } = headOf(info, n);
    state.layer.value = layer;
    state.head.value = head;
  });
}

/** Counts the steps along the ranking, which lead to heads that may be out of sight. */
export const walked = signal(0);

let walk = { question: "", n: -1 };

/** The next head of the ranking, or the one before. */
export function goToNext(by: 1 | -1): void {
  const info = doc.value?.info;
  if (!info) return;
  const question = [
    doc.value!.id, asked.value, state.order.value === "low",
    asked.value === "weight" && pinnedCell.value?.key, asked.value === "mass" && betweenSets.value?.key,
  ].join(" ");
  const walking = walk.question === question && walk.n === at.value.n;
  const n = nextPlace(ranked.value, at.value.n, walking, by);
  if (n === null) return;
  walk = { question, n };
  choose(info, n);
  walked.value++;
}
