// The reader's selection: a statistic and a head. It lives in the URL's hash.
import { signal } from "@preact/signals";
import { among, APPEARANCE, field, whole, type Fields } from "../hash";
import type { Statistic, Survey } from "./data";

export const SCALES = ["zero", "range"] as const;

/** A statistic's name; empty for the first. */
export const statistic = signal("");
/** A head's numbers in the model; null for the first head. */
export const layer = signal<number | null>(null);
export const head = signal<number | null>(null);
/** Lower end of an unsigned statistic's colours. */
export const scale = signal<(typeof SCALES)[number]>("zero");
/** The cell under the pointer. Never in the URL. */
export const hovered = signal<number | null>(null);

export const FIELDS = {
  by: field(statistic, (text) => (/^[a-z_]{1,40}$/.test(text) ? text : undefined)),
  l: field(layer, whole),
  h: field(head, whole),
  scale: among(scale, SCALES),
  ...APPEARANCE,
} as unknown as Fields;

/** The selected statistic, if any was measured. */
export const chosenStatistic = ({ statistics }: Survey): Statistic | undefined =>
  statistics.find(({ name }) => name === statistic.value) ?? statistics[0];

/** The cell of the selected head. */
export function chosenCell({ layers, heads, named }: Survey): number {
  const cell = layers.indexOf(layer.value ?? -1) * heads.length + heads.indexOf(head.value ?? -1);
  return named.includes(cell) ? cell : (named[0] ?? 0);
}

export function choose({ layers, heads }: Survey, cell: number): void {
  layer.value = layers[Math.floor(cell / heads.length)];
  head.value = heads[cell % heads.length];
}
