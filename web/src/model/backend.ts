// What answers the page's questions about texts: a server, or a model in the page itself.
import type { Ask, Outcome, Run } from "./ask";

/** Another text, a change of one, or a trace that was kept. */
export interface Change extends Partial<Ask> {
  text?: string;
  pair?: string | null;
  base?: string;
  kept?: string;
}

/** A trace file, with the model's predictions; of a change, its record. */
export interface Answered {
  id: string;
  bytes: ArrayBuffer;
  outcomes: Outcome[];
  run: Run | null;
}

/** Progress of a run, in layers or in bytes. */
export interface Progress {
  done: number;
  all: number;
  bytes?: boolean;
}

/** Parts of a study: its progress in layers or in runs, the effects of a layer's heads, and at the end its record. */
export interface Line {
  done?: number;
  runs?: number;
  all?: number;
  layer?: number;
  change?: number[];
  run?: Run;
}

export interface Backend {
  trace(change: Change, signal: AbortSignal, progress: (now: Progress) => void): Promise<Answered>;
  study(change: Change, signal: AbortSignal): AsyncIterable<Line>;
  /** The runs that it has kept; null if it can't be reached. */
  runs(): Promise<Run[] | null>;
}

/** What a back end refuses, in its words. */
export class Refused extends Error {}
