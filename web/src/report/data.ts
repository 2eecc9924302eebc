// The survey's data, written by src/headscope/atlas/site.py and site_data.py. Heads are cells: row * columns + column.

import type { LabelRow, RelationRow, RemovalRow, SyntaxRow, WriteRow } from "./rows";
import type { Language } from "../words/speech";

/** One field of a statistic: a number per cell, or null. */
type Numbers = (number | null)[];

/** The same; on a head's page, where only that head's number is needed, an object with that one cell. */
type Some = Record<number, number | null>;

export interface Statistic {
  name: string;
  /** By language. */
  names: Record<string, string>;
  meaning: string;
  unit: string;
  /** Text after a number in a sentence: the unit if it is a word, otherwise empty. */
  short: string;
  signed: boolean;
  mean: Numbers;
  deviation: Some;
  min: Some;
  q05: Some;
  q25: Some;
  q50: Some;
  q75: Some;
  q95: Some;
  max: Some;
  /** Windows that have a value. */
  count: Record<number, number>;
}

export type Field = "mean" | "deviation" | "min" | "q05" | "q25" | "q50" | "q75" | "q95" | "max";

/** The heads at one end of a statistic's range. */
export interface Standing {
  statistic: string;
  says: string;
  /** Cell and mean, the most extreme first. */
  heads: [number, number][];
  /** The 25% and 75% quantiles of the first head over windows. */
  low: number;
  high: number;
  /** The median of the heads' means. */
  middle: number;
}

export interface LayerFigure {
  title: string;
  axis: string;
  source: string;
  /** Statistic and title of its panel. */
  panels: [string, string][];
  /** Upper end of the vertical axis. */
  highest: number;
}

/** Heads placed on a plane by their distances, in units of a drawing `width` wide. */
export interface Plane {
  title: string;
  source: string;
  windows: number;
  /** Share of the squared distances that the plane preserves. */
  kept: number;
  width: number;
  height: number;
  radius: number;
  /** Height of the names' letters. */
  letters: number;
  heads: {
    cell: number;
    x: number;
    y: number;
    /** Centre of the name; null if there is no room for it. */
    name: [number, number] | null;
    /** Line from the point to a name that is not next to it. */
    leader: [number, number, number, number] | null;
  }[];
  /** The scale bar: a distance, and its drawn length. */
  unit: { distance: number; length: number };
}

/** A sentence in every language. */
export type Spoken = Record<Language, string>;

/** What a relation's dependent and its head are called, in every language. */
export type Ends = Record<Language, [dependent: string, head: string]>;

/** A head's label; of other heads, a head's page has only what it says, its score and its coverage. Shares are 0 to 1, over the half of the documents that the label was not chosen on. */
export interface Label extends LabelRow {
  /** What the head does among words. */
  says: Spoken;
  /** Its first clause. */
  short: Spoken;
  /** The words that look in most of its pairs, if they stand out and it names none. */
  looks: Spoken | null;
  /** How many clauses it has. */
  clauses: number;
  note: Spoken | null;
}

/** The head that finds a relation of the treebank best. */
export interface Syntax extends SyntaxRow {
  ends: Ends;
  /** From the head to its dependents. */
  down: boolean;
  cell: number;
  heldOut: number | null;
}

/** An example: the words around a pair, and what the word that looks gives to each. */
export interface Line {
  best: boolean;
  /** True for those of the strongest that the label doesn't explain. */
  other: boolean;
  weight: number;
  first: number;
  sep: number;
  /** Both words of the pair, among `words`. */
  query: number;
  key: number;
  words: string[];
  /** Weights in thousandths. */
  ink: number[];
  /** Where words are left out, and how many. */
  gap: [number, number] | null;
  document: string;
  window: number;
  /** The relation of the word that looks, where it looks at its head; of the other, where it looks at its dependent. */
  up: string | null;
  down: string | null;
  /** A command that opens the page on this window. */
  command: string;
}

/** How often a head finds a relation. */
interface Relation extends RelationRow {
  ends: Ends;
  bestCell: number;
  bestScore: number;
}

/** A head in the order of removal, and what it costs to be without it and all before it. */
interface Removed extends RemovalRow {
  cell: number;
}

/** What silencing each head changes: the mean over windows, with its interval. */
export interface Effects {
  output: string;
  unit: string;
  method: string;
  windows: number;
  documents: number;
  /** The number as it is. */
  base: number | null;
  change: Numbers;
  low: Numbers;
  high: Numbers;
  removal: Removed[];
}

/** What a head's page alone shows. */
export interface Head {
  cell: number;
  /** The mean weight at each distance; null if not measured. */
  distances: Numbers | null;
  lines: Line[] | null;
  relations: Relation[] | null;
  /** The tokens that it writes, none unless it surely does; null if not measured. */
  writes: WriteRow | null;
}

export interface Survey {
  model: { name: string; class: string; file: string; sha256: string; parameters: number };
  corpus: { name: string; kind: string; count: number; files: [string, number][] };
  settings: [string, string][];
  versions: [string, string][];
  counts: { documents: number; windows: number; tokens: number };
  /** How the survey was run; of each head, as many best examples were wanted. */
  run: { length: number; dtype: string; device: string; examples: number };
  /** The numbers of the rows and columns in the model. */
  layers: number[];
  heads: number[];
  /** Cells of the heads that the model has. */
  named: number[];
  /** Layers labelled on axes. */
  ticks: number[];
  statistics: Statistic[];
  standing: Standing[];
  figures: LayerFigure[];
  plane: Plane | null;
  /** By cell: the most similar heads and their distances; null if not measured. */
  nearest: [number, number][][] | null;
  /** By cell: the head's label; null without labels. */
  labels: (Label | null)[] | null;
  syntax: Syntax[] | null;
  /** The medians over heads. */
  middle: Numbers | null;
  effects: Effects | null;
  /** The first token's name, and [SEP]'s, as the tokenizer has them. */
  special: { first: string | null; sep: string | null };
  /** Windows over which heads were compared. */
  compared: number;
  /** Statistics that were not measured, with the reason. */
  leftOut: [string, string][];
  /** Texts of these data, in Japanese and Chinese. */
  words: Record<string, readonly [ja: string, zh: string]>;
  refused: { count: number; reasons: [string, number][]; documents: [string, string][] };
}

function embedded<T>(name: string): T {
  const text = document.getElementById(name)?.textContent;
  if (!text) throw new Error("there is no survey in this page");
  return JSON.parse(text) as T;
}

/** The survey embedded in this page. */
export const readSurvey = (): Survey => embedded<Survey>("hs-survey");

/** The head whose page this is; none on the home page. */
export const readHead = (): Head | undefined => embedded<Head[]>("hs-heads")[0];

/** A head's label: layer.head. */
export const headLabel = ({ layers, heads }: Survey, cell: number): string =>
  `${layers[Math.floor(cell / heads.length)]}.${heads[cell % heads.length]}`;
