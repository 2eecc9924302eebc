// The reader's selection: a statistic, a head's page, and what the home page is filtered by. It lives in the URL's hash.
import { signal } from "@preact/signals";
import { among, APPEARANCE, field, whole, type Fields } from "../hash";
import type { Statistic, Survey } from "./data";
import { GROUPS, type Group } from "./kinds";
import { numbersOf } from "./numbers";

export const SCALES = ["zero", "range"] as const;

/** A statistic's name; empty for labels, or for the first where there are none. */
export const statistic = signal("");
/** In a single file, the numbers of the head whose page is shown; null for the home page. */
export const layer = signal<number | null>(null);
export const head = signal<number | null>(null);
/** Lower end of an unsigned statistic's colours. */
export const scale = signal<(typeof SCALES)[number]>("zero");
/** The group of labels that the home page is filtered by; empty for all. */
export const group = signal<Group | "">("");
/** Text that the table is filtered by. */
export const wanted = signal("");
/** The column that the table is sorted by, from high to low unless `upward`. */
export const sorted = signal("head");
export const upward = signal(true);
/** The cell under the pointer. Never in the URL. */
export const hovered = signal<number | null>(null);

export const FIELDS = {
  by: field(statistic, (text) => (/^[a-z_]{1,40}$/.test(text) ? text : undefined)),
  l: field(layer, whole),
  h: field(head, whole),
  scale: among(scale, SCALES),
  group: among(group, GROUPS as readonly (Group | "")[]),
  find: field(wanted, (text) => text.slice(0, 80)),
  ...APPEARANCE,
} as unknown as Fields;

/** The selected statistic; undefined for labels, or if none was measured. */
export const chosenStatistic = (survey: Survey): Statistic | undefined =>
  numbersOf(survey).find(({ name }) => name === statistic.value) ?? (survey.labels ? undefined : survey.statistics[0]);

/** The cell of the head whose page is chosen in the URL; null if there is none. */
export function chosenCell({ layers, heads, named }: Survey): number | null {
  const cell = layers.indexOf(layer.value ?? -1) * heads.length + heads.indexOf(head.value ?? -1);
  return layer.value !== null && head.value !== null && named.includes(cell) ? cell : null;
}
