// Kinds of labels: their groups and colours, and what a label says in the reader's language.
import { say, type Word } from "./words";
import { endsOfRelation, relationTitle, tagName } from "./words/relations";
import type { Claim, Label, Survey } from "./data";
import { count as inFull } from "../words/numbers";

/** Groups of labels, in the order of the legend. */
export const GROUPS = ["position", "same", "syntax", "nearest", "inner", "meaning", "punctuation", "key", "rest", "broad", "other", "none"] as const;
export type Group = (typeof GROUPS)[number];

/** The group of a claim: the two special tokens are one. */
export function groupOf({ kind }: Claim): Group {
  if (kind === "first" || kind === "sep") return "rest";
  return GROUPS.find((group) => group === kind) ?? "other";
}

/** Groups that describe a choice among words, not what is left when nothing else fits. */
export const SPECIFIC: readonly Group[] = ["position", "same", "syntax", "nearest", "inner", "meaning", "punctuation", "key", "other"];

/** A share as a percentage without decimals. */
export const share = (value: number | null): string => (value === null ? "–" : say("share", { n: Math.round(100 * value) }));

/** Names of special tokens, as the survey's tokenizer has them; set once, when the page opens. */
const special = { first: "[CLS]", sep: "[SEP]" };
export function nameSpecial({ special: { first, sep } }: Survey): void {
  special.first = first ?? special.first;
  special.sep = sep ?? special.sep;
}
export const tokenOf = (kind: string): string => (kind === "sep" ? special.sep : special.first);

/** Families of relations that are one act. */
const ACTS = ["serves", "served", "modifier", "modified", "governor", "governed"];

/** A label in two or three words, for a cell of the grid. */
export function shortOf(claim: Claim): string {
  const { kind, offset, relation, way, act } = claim;
  if (act !== null && ACTS.includes(act)) return say(`short_act_${act}` as Word);
  if (relation !== null) {
    return say("arrow", endsOfRelation(relation, way ?? "up"));
  }
  if (offset !== null) return Math.abs(offset) === 1 ? say(offset < 0 ? "short_previous" : "short_next") : say(offset < 0 ? "short_left" : "short_right", { n: Math.abs(offset) });
  return SHORT[kind] ? say(SHORT[kind], { token: tokenOf(kind) }) : claim.label;
}

const SHORT: Record<string, Word> = {
  same: "short_same", inner: "short_inner", punctuation: "short_punctuation", key: "short_key", first: "short_first", sep: "short_sep",
  broad: "short_broad", meaning: "short_meaning", felt: "short_felt", none: "short_none",
};

/** A label as a sentence. */
export function titleOf(claim: Claim): string {
  const { kind, offset, relation, way, act } = claim;
  if (act !== null && ACTS.includes(act)) return say(`title_act_${act}` as Word);
  if (relation !== null) return relationTitle(relation, way ?? "up");
  if (offset !== null) return Math.abs(offset) === 1 ? say(offset < 0 ? "title_previous" : "title_next") : say(offset < 0 ? "title_left" : "title_right", { n: Math.abs(offset) });
  return TITLE[kind] ? say(TITLE[kind], { token: tokenOf(kind) }) : claim.label;
}

const TITLE: Record<string, Word> = {
  same: "title_same", inner: "title_inner", punctuation: "title_punctuation", key: "title_key", first: "title_first", sep: "title_sep",
  broad: "title_broad", meaning: "title_meaning", felt: "title_felt", none: "title_none",
};

/** What the score counts, in words. */
export function evidenceOf(label: Label): string {
  const parts = { n: inFull(label.count ?? 0), token: tokenOf(label.kind) };
  if (label.relation !== null) return say("evidence_syntax", { ...parts, what: endsOfRelation(label.relation, label.way ?? "up").from });
  if (label.act !== null) return say("evidence_act", parts);
  return say(EVIDENCE[label.kind] ?? "evidence_other", parts);
}

const EVIDENCE: Record<string, Word> = {
  position: "evidence_position", same: "evidence_same", inner: "evidence_inner", punctuation: "evidence_punctuation", key: "evidence_key",
  first: "evidence_first", sep: "evidence_sep", broad: "evidence_broad", meaning: "evidence_meaning",
};

/** What the baseline is, in words. */
export const baselineOf = (label: Claim): string => say(label.relation !== null || label.act !== null ? "base_offset" : (BASE[label.kind] ?? "base_other"));

const BASE: Record<string, Word> = {
  position: "base_word", same: "base_word", inner: "base_outer", punctuation: "base_words", first: "base_tokens", sep: "base_tokens",
};

/** A simple rule such as "nearest VERB before" in words. */
export function ruleOf(rule: string): string {
  if (rule === "nearest of the right kind") return say("rule_kind");
  const match = /^nearest (\S+) (before|after)$/.exec(rule);
  return match ? say(match[2] === "before" ? "rule_before" : "rule_after", { tag: tagName(match[1]) }) : rule;
}

/** (score - baseline) / (1 - baseline). */
export const gainOf = ({ score, baseline }: Label): number => ((score ?? 0) - (baseline ?? 0)) / (1 - (baseline ?? 0) || 1);

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
