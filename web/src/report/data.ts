// A survey as Python passes it (src/headscope/_survey/report_data.py writes it). Heads are cells: row * columns + column.

/** One field of a statistic, a number for each cell; null where there is none. */
type Numbers = (number | null)[];

export interface Statistic {
  name: string;
  meaning: string;
  unit: string;
  /** What stands behind a number in a sentence: the unit where it is a word, else nothing. */
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

/** The heads at one end of a statistic. */
export interface Standing {
  statistic: string;
  says: string;
  /** Cell and mean, the most telling first. */
  heads: [number, number][];
  /** Of the first head's windows: the quantiles 25% and 75%. */
  low: number;
  high: number;
  /** The median head's mean. */
  middle: number;
}

export interface LayerFigure {
  title: string;
  axis: string;
  source: string;
  /** Statistic and what stands above its panel. */
  panels: [string, string][];
  /** Where the vertical axis ends. */
  highest: number;
}

/** Heads on a plane by their distances, laid out in units of a drawing `width` wide. */
export interface Plane {
  title: string;
  source: string;
  windows: number;
  /** Share of the squared distances that the plane holds. */
  kept: number;
  width: number;
  height: number;
  radius: number;
  /** Height of a name's letters. */
  letters: number;
  heads: {
    cell: number;
    x: number;
    y: number;
    /** The middle of the name; null where there is no room for it. */
    name: [number, number] | null;
    /** From the point to a name that stands too far off. */
    leader: [number, number, number, number] | null;
  }[];
  /** A length for the scale: what it stands for, and how long it is drawn. */
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
  /** Layers that get a number on an axis. */
  ticks: number[];
  statistics: Statistic[];
  standing: Standing[];
  figures: LayerFigure[];
  plane: Plane | null;
  /** By cell: the heads most like it and their distances; null where none were measured. */
  nearest: [number, number][][] | null;
  /** Statistics that were not measured, and why. */
  leftOut: [string, string][];
  refused: { count: number; reasons: [string, number][]; documents: [string, string][] };
}

/** The survey in this page. */
export function readSurvey(): Survey {
  const text = document.getElementById("hs-survey")?.textContent;
  if (!text) throw new Error("there is no survey in this page");
  return JSON.parse(text) as Survey;
}

/** A head as people name it: layer.head. */
export const headLabel = ({ layers, heads }: Survey, cell: number): string =>
  `${layers[Math.floor(cell / heads.length)]}.${heads[cell % heads.length]}`;
