// The back end, if there is one: it runs the model on other texts, with heads silenced and tokens masked.
import { computed, signal } from "@preact/signals";
import { say } from "../words";
import type { Outcome, Run } from "./ask";
import { Refused, type Backend, type Change } from "./backend";
import type { Statistic } from "../heads/catalog";
import { openTrace, reason, type Doc } from "../state/store";
import type { Language } from "../words/speech";

export interface Start {
  /** `server` if something runs the model on other texts: a server, or the page itself if it has a model. */
  home: "file" | "server" | "notebook";
  /** The size of the model that the page holds, packed, and the text that it opens on. */
  model?: { bytes: number; text: string; examples: string[] };
  traces: number;
  /** Size of each trace's file. */
  bytes?: number[];
  token?: string;
  remote?: string[];
  mask?: string | null;
  /** True if the model predicts masked tokens. */
  fills?: boolean;
  outcomes?: Outcome[][];
  /** The labels of a classifier. */
  classes?: string[];
  /** Runs of cause and effect that the file holds. */
  runs?: Run[];
  /** Python's catalog of the statistics that follow from weights. */
  statistics?: Statistic[];
  /** In a file that a page has written: its traces' names, and the runs they are changes of (by number here). */
  names?: string[];
  of?: Doc["of"][];
  /** What a file shows first. */
  state?: string;
  atlas?: Atlas;
}

/** A survey beside the traces of its model, as headscope/atlas/head_notes.py has it, in every language. */
interface Atlas {
  model: string;
  /** By layer.head and language: the label; score, effect and what they were measured on; the head's page; its link. */
  heads: Record<string, Record<Language, [string, string, string, string]>>;
  /** Address of the survey's site; null where nothing leads there. */
  site: string | null;
}

export const start = signal<Start>({ home: "file", traces: 0 });
/** True where something runs the model on other texts. */
export const hasModel = computed(() => start.value.home === "server");
export const backend = signal<Backend | null>(null);
export const outcomes = signal<Record<string, Outcome[]>>({});
export const running = signal<string | null>(null);
export const trouble = signal<string | null>(null);
/** Ends the request that is under way. */
export let cancel = (): void => undefined;

const megabytes = (bytes: number): string => (bytes / 1e6).toFixed(1);

let began = 0;

/** Progress of a run, in words. */
export function told({ done, runs, all }: { done?: number; runs?: number; all?: number }): void {
  running.value = say(runs === undefined ? "text_running" : "grp_running", { done: runs ?? done ?? 0, all: all ?? "?", seconds: ((performance.now() - began) / 1000).toFixed(1) });
}

/** Why a request has no answer. */
export const unanswered = (error: unknown): string =>
  error instanceof Refused ? say("refused", { why: error.message }) : error instanceof TypeError ? say("lost") : reason(error);

/** One request at a time, which may be cancelled; what went wrong is said. */
export async function abortable<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T | null> {
  if (running.value !== null) return null;
  if (!backend.value) {
    trouble.value = say("offline_keys");
    return null;
  }
  const control = new AbortController();
  cancel = () => control.abort();
  trouble.value = null;
  began = performance.now();
  told({});
  try {
    return await work(control.signal);
  } catch (error) {
    if (control.signal.aborted) return null;
    trouble.value = unanswered(error);
    return null;
  } finally {
    running.value = null;
  }
}

/** Run the model on a text, or on a change of one. */
export async function run(change: Change, name: string | null, origin: number | null = null, made: Run | null = null): Promise<Doc | null> {
  return abortable(async (signal) => {
    const { id, bytes, outcomes: predictions, run: record } = await backend.value!.trace(change, signal, (now) => {
      if (now.bytes) running.value = say("text_loading", { done: megabytes(now.done), all: megabytes(now.all) });
      else told(now);
    });
    signal.throwIfAborted();
    outcomes.value = { ...outcomes.value, [id]: predictions };
    const of = record ?? made;
    return openTrace({ bytes }, name, id, origin !== null && of ? { origin, run: of } : null);
  });
}
