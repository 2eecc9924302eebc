// The server, if there is one: it runs the model on other texts, with heads silenced and tokens masked.
import { signal } from "@preact/signals";
import { say } from "./words";
import type { Ask, Outcome, Run } from "./ask";
import type { Statistic } from "./catalog";
import { openTrace, type Doc } from "./store";

export interface Start {
  home: "file" | "server" | "notebook";
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
  /** In a file that a page has written: its traces' names, the runs they are changes of (by number here), and its state. */
  names?: string[];
  of?: Doc["of"][];
  state?: string;
}

/** Another text, a change of one, or a trace that the server has kept. */
export interface Change extends Partial<Ask> {
  text?: string;
  pair?: string | null;
  base?: string;
  kept?: string;
}

export const start = signal<Start>({ home: "file", traces: 0 });
export const outcomes = signal<Record<string, Outcome[]>>({});
export const running = signal<string | null>(null);
export const trouble = signal<string | null>(null);
/** Ends the request that is under way. */
export let cancel = (): void => undefined;

class Refused extends Error {}

const megabytes = (bytes: number): string => (bytes / 1e6).toFixed(1);

let began = 0;

/** Progress of a run, in words. */
export function told({ done, all }: { done?: number; all?: number }): void {
  running.value = say("text_running", { done: done ?? 0, all: all ?? "?", seconds: ((performance.now() - began) / 1000).toFixed(1) });
}

/** One request at a time, which may be cancelled; what went wrong is said. */
export async function abortable<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T | null> {
  if (running.value !== null) return null;
  const control = new AbortController();
  cancel = () => control.abort();
  trouble.value = null;
  began = performance.now();
  told({});
  try {
    return await work(control.signal);
  } catch (error) {
    if (control.signal.aborted) return null;
    trouble.value = error instanceof Refused ? say("refused", { why: error.message }) : error instanceof TypeError ? say("cut") : String(error);
    return null;
  } finally {
    running.value = null;
  }
}

export async function post(path: string, body: object, signal: AbortSignal): Promise<ReadableStreamDefaultReader<Uint8Array>> {
  const response = await fetch(path, {
    method: "POST",
    signal,
    headers: { "content-type": "application/json", "x-headscope-token": start.value.token ?? "" },
    body: JSON.stringify(body),
  });
  if (!response.ok || !response.body) throw new Refused((await response.text()).slice(0, 600));
  return response.body.getReader();
}

type Line = any;

/** The lines of JSON at the beginning of an answer; after one with an id, `rest` has the bytes that follow it. */
export async function* lines(reader: ReadableStreamDefaultReader<Uint8Array>, rest?: Uint8Array[]): AsyncGenerator<Line> {
  let buffer = new Uint8Array(0);
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const joined = new Uint8Array(buffer.length + value.length);
    joined.set(buffer);
    joined.set(value, buffer.length);
    buffer = joined;
    for (let end = buffer.indexOf(10); end >= 0; end = buffer.indexOf(10)) {
      const line = JSON.parse(new TextDecoder().decode(buffer.subarray(0, end))) as Line;
      buffer = buffer.subarray(end + 1);
      if (line.refused) throw new Refused(line.refused);
      if (line.id) rest?.push(buffer);
      yield line;
      if (line.id) return;
    }
  }
}

/** Run the model. The answer is lines of JSON with the progress, then one with the size, then the trace file. */
export async function run(change: Change, name: string | null, origin: number | null = null, made: Run | null = null): Promise<Doc | null> {
  return abortable(async (signal) => {
    const reader = await post("api/trace", change, signal);
    let file: { id: string; bytes: number; outcomes: Outcome[]; run: Run | null } | null = null;
    const parts: Uint8Array[] = [];
    for await (const line of lines(reader, parts)) {
      if (line.id) file = line;
      else told(line);
    }
    if (!file) throw new TypeError("cut off");
    let got = parts[0].length;
    while (got < file.bytes) {
      running.value = say("text_loading", { done: megabytes(got), all: megabytes(file.bytes) });
      const { done, value } = await reader.read();
      if (done) throw new TypeError("cut off");
      parts.push(value);
      got += value.length;
    }
    const bytes = new Uint8Array(got);
    let at = 0;
    for (const part of parts) {
      bytes.set(part, at);
      at += part.length;
    }
    outcomes.value = { ...outcomes.value, [file.id]: file.outcomes };
    const record = file.run ?? made;
    return openTrace({ bytes: bytes.buffer }, name, file.id, origin !== null && record ? { origin, run: record } : null);
  });
}
