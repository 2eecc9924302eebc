// The survey's data, written by src/headscope/_survey/report_data.py. Heads are cells: row * columns + column.

/** One field of a statistic: a number per cell, or null. */
type Numbers = (number | null)[];

export interface Statistic {
  name: string;
  meaning: string;
  unit: string;
  /** Text after a number in a sentence: the unit if it is a word, otherwise empty. */
  short: string;
  signed: boolean;
  mean: Numbers;
  deviation: Numbers;
  min: Numbers;
  q05: Numbers;
  q25: Numbers;
  q50: Numbers;
  q75: Numbers;
  q95: Numbers;
  max: Numbers;
  /** Windows that have a value. */
  count: number[];
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

export interface Survey {
  model: { name: string; class: string; file: string; sha256: string; parameters: number };
  corpus: { name: string; kind: string; count: number; files: [string, number][] };
  settings: [string, string][];
  versions: [string, string][];
  counts: { documents: number; windows: number; tokens: number };
  run: { length: number; dtype: string; device: string };
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
  /** Statistics that were not measured, with the reason. */
  leftOut: [string, string][];
  refused: { count: number; reasons: [string, number][]; documents: [string, string][] };
}

/** The survey embedded in this page. */
export function readSurvey(): Survey {
  const text = document.getElementById("hs-survey")?.textContent;
  if (!text) throw new Error("there is no survey in this page");
  return JSON.parse(text) as Survey;
}

/** A head's label: layer.head. */
export const headLabel = ({ layers, heads }: Survey, cell: number): string =>
  `${layers[Math.floor(cell / heads.length)]}.${heads[cell % heads.length]}`;
