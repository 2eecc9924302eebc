// Rows of the survey's tables as the site has them, written from src/headscope/results/schemas.py by
// `pytest tests/atlas/test_schemas.py --refresh-screens`.

/** The label of a head: `labels.parquet`. Numbers are over the half of the documents that didn't choose it. */
export interface LabelRow {
  /** Of the first clause: `position`, `nearest`, `same`, `meaning`, `pair`, `syntax`, `class`, `punctuation`, `learned` (words such as …), or `none`. */
  kind: string;
  /** What the head does among words, in English. */
  label: string;
  /** Share of the head's 100 strongest pairs that the label explains. */
  score: number | null;
  /** The bounds of its 95% interval, over documents. */
  low: number | null;
  /** The bounds of its 95% interval, over documents. */
  high: number | null;
  /** Pairs that it was counted over, 100 or fewer. */
  count: number | null;
  /** The share that it would explain if every word looked evenly. */
  baseline: number | null;
  /** The score as a percentage. */
  coverage: number | null;
  /** What the label gains beside an even share, in bits per pair. */
  bits: number | null;
  /** What the best fixed offset gains. */
  offsetBits: number | null;
  /** Of words that have a possible case, the share whose choice is one. */
  accuracy: number | null;
  /** The same if every word looked evenly. */
  accuracyChance: number | null;
  /** How many of its clauses the other half of the documents would choose, too. */
  stable: number | null;
  /** Whether the label holds in part only. */
  part: boolean;
  /** Of each clause of the label, the share of these pairs that it explains by itself. */
  alone: number[];
  /** Of each, the share that it would explain if every word looked evenly. */
  aloneChance: number[];
  /** The share of these pairs that have it. */
  looksShare: number | null;
  /** The share that has it of all pairs that the label could explain. */
  looksChance: number | null;
  /** Mean weight of words on special tokens. */
  special: number | null;
  /** Mean weight of words on the first token. */
  first: number | null;
  /** Mean weight of words on [SEP]. */
  sep: number | null;
  /** Mean weight of words on the last closing mark. */
  stop: number | null;
  /** Mean weight of tokens on the other tokens of their word. */
  inner: number | null;
  /** Mean entropy of the weights among words over log n. */
  entropy: number | null;
}

/** The head that finds a relation of a treebank best: `syntax.parquet`. */
export interface SyntaxRow {
  /** As in the treebank, with its subtype: `nsubj:pass`. The root and those below 20 are left out. */
  relation: string;
  /** Over all documents, 0 to 1. */
  accuracy: number;
  /** The bounds of its 95% interval. */
  low: number | null;
  /** The bounds of its 95% interval. */
  high: number | null;
  /** Dependents, over all documents. */
  count: number;
  /** The best fixed offset, head minus dependent, in words. */
  offset: number;
  /** How often that offset is right. */
  offsetAccuracy: number;
}

/** Accuracy of one head for one relation of a treebank: `relations.parquet`. */
export interface RelationRow {
  /** As in the treebank. */
  relation: string;
  /** Of the word that looks: `up`, to its head; `down`, to such a dependent of it. */
  way: "up" | "down";
  /** Share of such words whose strongest word is right, over all documents. */
  score: number;
  /** The bounds of the 95% interval. */
  low: number | null;
  /** The bounds of the 95% interval. */
  high: number | null;
  /** Such words. */
  count: number;
  /** The best fixed offset from the word that looks. */
  offset: number;
  /** How often that offset is right. */
  baseline: number;
}

/** The tokens that a head writes: `writes.parquet`. */
export interface WriteRow {
  /** Up to ten whose masked-LM logits the head's output raises where they are right, chosen on one half of the windows, the one that gains most first. */
  tokens: string[];
  /** Per masked token, what they gain together over their frequency, on the other half; null without one. */
  bits: number | null;
  /** The bounds of the 95% interval. */
  low: number | null;
  /** The bounds of the 95% interval. */
  high: number | null;
  /** Masked tokens of the other half. */
  masked: number;
  /** Its windows. */
  windows: number;
  /** Documents that they are from. */
  documents: number;
  /** What was halved, and what the interval is over: `documents`, or `windows` if there are fewer than 20. */
  over: "documents" | "windows";
}

/** A head in the order in which heads can be removed: `removal.parquet`. */
export interface RemovalRow {
  /** With this head and all before it silenced, the mean rise of loss or of 1 − cosine, or the mean absolute change of a logit or a projection. It is over the windows that choose, of documents with even numbers. */
  cost: number;
  /** The same over the other windows. */
  costHeldOut: number | null;
  /** The bounds of the 95% interval. */
  low: number | null;
  /** The bounds of the 95% interval. */
  high: number | null;
}
