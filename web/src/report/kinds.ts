// Kinds of labels: their groups and colours, and what a label says in the reader's language.
import { spoken } from "../words/speech";
import { say } from "./words";
import type { Label, Survey } from "./data";

/** Groups of labels, in the order of the legend. */
export const GROUPS = ["position", "nearest", "same", "syntax", "meaning", "pair", "punctuation", "class", "learned", "none"] as const;
export type Group = (typeof GROUPS)[number];

export const groupOf = ({ kind }: Label): Group => GROUPS.find((group) => group === kind) ?? "none";

/** Groups of heads that have a label. */
export const SPECIFIC: readonly Group[] = GROUPS.slice(0, -1);

/** A share as a percentage without decimals. */
export const share = (value: number | null): string => (value === null ? "–" : say("share", { n: Math.round(100 * value) }));

/** Names of special tokens, as the survey's tokenizer has them; set once, when the page opens. */
const special = { first: "[CLS]", sep: "[SEP]" };
export function nameSpecial({ special: { first, sep } }: Survey): void {
  special.first = first ?? special.first;
  special.sep = sep ?? special.sep;
}
export const tokenOf = (kind: string): string => (kind === "sep" ? special.sep : special.first);

/** The clauses of a label beside its first. */
export const moreOf = ({ clauses }: Label): string => (clauses > 1 ? say("more_clauses", { n: clauses - 1 }) : "");

/** The first clause of a label, and how many more there are. */
export const shortOf = (label: Label): string => `${label.short[spoken.value]} ${moreOf(label)}`.trim();

/** A label as a sentence. */
export function titleOf({ kind, says }: Label): string {
  if (kind === "none") return say("title_none");
  const text = says[spoken.value];
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** (score - baseline) / (1 - baseline). */
export const gainOf = ({ score, baseline }: Label): number => ((score ?? 0) - (baseline ?? 0)) / (1 - (baseline ?? 0) || 1);

/** Bits a pair below which a label says next to nothing; and what counts as much explained. */
const [LEAST_BITS, MUCH] = [0.5, 80];

/** True for a label that says next to nothing, and where there is none. */
export const isWeak = ({ kind, bits }: Label): boolean => kind === "none" || (bits ?? 0) < LEAST_BITS;

/** True for a label that explains 80 of 100 pairs or more. */
export const isStrong = (label: Label): boolean => !isWeak(label) && (label.coverage ?? 0) >= MUCH;

/** The cells of each group, the largest gain first. */
export function byGroup(survey: Survey): Map<Group, number[]> {
  const groups = new Map<Group, number[]>(GROUPS.map((group) => [group, []]));
  for (const cell of survey.named) {
    const label = survey.labels?.[cell];
    if (label) groups.get(groupOf(label))!.push(cell);
  }
  for (const cells of groups.values()) cells.sort((a, b) => gainOf(survey.labels![b]!) - gainOf(survey.labels![a]!) || a - b);
  return groups;
}
