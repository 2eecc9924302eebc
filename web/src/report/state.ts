// The reader's selection: a statistic, and what the home page is filtered by. It lives in the URL's hash.
import { signal } from "@preact/signals";
import { among, APPEARANCE, field, text, type Fields } from "../state/hash";
import type { Statistic, Survey } from "./data";
import { GROUPS, type Group } from "./kinds";
import { numbersOf } from "./numbers";

export const SCALES = ["zero", "range"] as const;

/** A statistic's name; empty for labels, or for the first where there are none. */
export const statistic = signal("");
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
/** How often the window changed its size. */
export const resized = signal(0);

export const FIELDS = {
  by: field(statistic, (text) => (/^[a-z_]{1,40}$/.test(text) ? text : undefined)),
  scale: among(scale, SCALES),
  group: among(group, GROUPS as readonly (Group | "")[]),
  find: text(wanted, 80),
  ...APPEARANCE,
} as unknown as Fields;

/** The selected statistic; undefined for labels, or if none was measured. */
export const chosenStatistic = (survey: Survey): Statistic | undefined =>
  numbersOf(survey).find(({ name }) => name === statistic.value) ?? (survey.labels ? undefined : survey.statistics[0]);
