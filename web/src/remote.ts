// The server, if there is one: it runs the model on other texts, with heads silenced and tokens masked.
import { signal } from "@preact/signals";
import { say } from "./words";
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
  /** Python's catalog of the statistics that follow from weights. */
  statistics?: Statistic[];
  /** In a file that a page has written: its traces' names, the runs they are changes of (by number here), and its state. */
  names?: string[];
  of?: Doc["of"][];
  state?: string;
}

/** The model's prediction at one token or for the text, likeliest first. */
export interface Outcome {
  what: string;
  place: number | null;
  token: string | null;
  top: { label: string; share: number }[];
}

export interface Change {
  text?: string;
  pair?: string | null;
  base?: string;
  ablate?: [number, number][];
  mask?: number[];
}

export const start = signal<Start>({ home: "file", traces: 0 });
export const outcomes = signal<Record<string, Outcome[]>>({});
export const moved = signal<Record<string, number>>({});
export const running = signal<string | null>(null);
export const trouble = signal<string | null>(null);

class Refused extends Error {}

const megabytes = (bytes: number): string => (bytes / 1e6).toFixed(1);

/** Run the model. The answer is lines of JSON with the progress, then one with the size, then the trace file. */
export async function run(change: Change, name: string | null, of: Doc["of"] = null): Promise<Doc | null> {
  if (running.value !== null) return null;
  trouble.value = null;
  const began = performance.now();
  running.value = say("text_running", { done: 0, all: "?", seconds: "0.0" });
  try {
    const response = await fetch("api/trace", {
      method: "POST",
      headers: { "content-type": "application/json", "x-headscope-token": start.value.token ?? "" },
      body: JSON.stringify(change),
    });
    if (!response.ok || !response.body) throw new Refused((await response.text()).slice(0, 600));
    const reader = response.body.getReader();
    let buffer = new Uint8Array(0);
    let file: { id: string; bytes: number; outcomes: Outcome[]; moved: number | null } | null = null;
    const parts: Uint8Array[] = [];
    let got = 0;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      if (file) {
        parts.push(value);
        got += value.length;
      } else {
        const joined = new Uint8Array(buffer.length + value.length);
        joined.set(buffer);
        joined.set(value, buffer.length);
        buffer = joined;
        for (let end = buffer.indexOf(10); end >= 0 && !file; end = buffer.indexOf(10)) {
          const line = JSON.parse(new TextDecoder().decode(buffer.subarray(0, end)));
          buffer = buffer.subarray(end + 1);
          if (line.refused) throw new Refused(line.refused);
          if (line.id) file = line;
          else running.value = say("text_running", { done: line.done, all: line.all, seconds: ((performance.now() - began) / 1000).toFixed(1) });
        }
        if (file) {
          parts.push(buffer);
          got = buffer.length;
        }
      }
      if (file) running.value = say("text_loading", { done: megabytes(got), all: megabytes(file.bytes) });
    }
    if (!file || got !== file.bytes) throw new TypeError("cut off");
    const bytes = new Uint8Array(got);
    let at = 0;
    for (const part of parts) {
      bytes.set(part, at);
      at += part.length;
    }
    outcomes.value = { ...outcomes.value, [file.id]: file.outcomes };
    if (file.moved !== null) moved.value = { ...moved.value, [file.id]: file.moved };
    return await openTrace({ bytes: bytes.buffer }, name, file.id, of);
  } catch (error) {
    trouble.value = error instanceof Refused ? say("refused", { why: error.message }) : error instanceof TypeError ? say("cut") : String(error);
    return null;
  } finally {
    running.value = null;
  }
}
