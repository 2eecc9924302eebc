// Answers the page's questions about traces. Runs in a worker; where there can be none, in the page itself.
import { chain, measure, tile, viewRows, type Chain, type HeadMeasure, type View } from "./arithmetic";
import { fromBase64 } from "./safetensors";
import { HeldTrace, type HeadArrays, type TraceInfo } from "./trace";

export interface HeadName {
  trace: number;
  layer: number;
  head: number;
}

export interface Questions {
  open: { ask: { id: number; base64?: string; bytes?: ArrayBuffer }; answer: TraceInfo };
  close: { ask: { id: number }; answer: null };
  measure: { ask: HeadName; answer: HeadMeasure };
  rows: { ask: HeadName & { view: View; from: number; to: number; normed: boolean }; answer: Float32Array };
  tile: {
    ask: HeadName & {
      minus: HeadName | null; view: View; box: [number, number, number, number];
      height: number; width: number; normed: boolean;
    };
    answer: Float32Array;
  };
  chain: { ask: HeadName & { i: number; j: number }; answer: Chain };
}

export class Desk {
  private readonly traces = new Map<number, HeldTrace>();

  answer<K extends keyof Questions>(kind: K, ask: Questions[K]["ask"]): Questions[K]["answer"] {
    const answers: { [N in keyof Questions]: (ask: Questions[N]["ask"]) => Questions[N]["answer"] } = {
      open: ({ id, base64, bytes }) => {
        const held = new HeldTrace(bytes ? new Uint8Array(bytes) : fromBase64(base64 ?? ""));
        this.traces.set(id, held);
        return held.info;
      },
      close: ({ id }) => {
        this.traces.delete(id);
        return null;
      },
      measure: (name) => measure(this.head(name), this.held(name).info.keys.special),
      rows: ({ view, from, to, normed, ...name }) =>
        viewRows(this.head(name), view, from, to, 0, view.columns.starts.length - 1, normed),
      tile: ({ minus, view, box, height, width, normed, ...name }) =>
        tile(this.head(name), minus && this.head(minus), view, box, height, width, normed),
      chain: ({ i, j, ...name }) => chain(this.head(name), this.held(name).values(name.layer, name.head), i, j),
    };
    return answers[kind](ask);
  }

  private held({ trace }: HeadName): HeldTrace {
    const held = this.traces.get(trace);
    if (!held) throw new Error(`trace ${trace} is not open`);
    return held;
  }

  private head(name: HeadName): HeadArrays {
    return this.held(name).head(name.layer, name.head);
  }
}
