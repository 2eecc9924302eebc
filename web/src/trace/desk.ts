// Answers the page's requests about traces. Runs in a worker, or in the page itself if workers aren't allowed.
import { size, tile, viewRows, type View } from "./cells";
import { chain, type Chain } from "./chain";
import { difference, type Difference } from "./difference";
import { massBetween, type Sets } from "./masses";
import { distance, measure, sample, withMasses, type HeadMeasure, type Sample } from "./measures";
import { FormatError, fromBase64, toBase64 } from "./safetensors";
import { lookedAtBy, looksAt } from "./profile";
import type { Followed } from "./follow";
import type { HeadArrays } from "./head";
import { HeldTrace, type Piece, type TraceInfo } from "./trace";

interface HeadName {
  trace: number;
  layer: number;
  head: number;
}

/** A head, or the mean of several of its trace: the picture is theirs. */
export interface Drawn extends HeadName {
  mean: readonly [number, number][] | null;
}

/** The other side of a difference: its rows and columns stand for those of the first. */
export interface Minus extends Drawn {
  view: View;
}

export interface Questions {
  /** A chunk of a trace's bytes, as base64; `bytes` is the size of the whole. */
  part: { ask: { id: number; base64: string; bytes: number }; answer: null };
  open: { ask: { id: number; bytes?: ArrayBuffer }; answer: TraceInfo };
  close: { ask: { id: number }; answer: null };
  /** A chunk of an open trace's bytes, as base64, for another page; empty beyond the end. */
  copy: { ask: { id: number; from: number; bytes: number }; answer: string };
  /** A part that an answer lacked. */
  feed: { ask: { piece: Piece; data: Float32Array }; answer: null };
  /** Of the whole head, or of what filters leave. */
  measure: { ask: HeadName & { masses: Record<string, string[]>; view?: View; normed?: boolean }; answer: HeadMeasure };
  rows: { ask: Drawn & { view: View; from: number; to: number; normed: boolean }; answer: Float32Array };
  tile: {
    ask: Drawn & {
      minus: Minus | null; view: View; box: [number, number, number, number];
      height: number; width: number; normed: boolean;
    };
    answer: Float32Array;
  };
  /** The whole difference, and how much of the weight moves. */
  moved: { ask: Drawn & { minus: Minus; view: View; height: number; width: number }; answer: Difference };
  /** Distance of one head from another of the trace. */
  distance: { ask: HeadName & { to: { layer: number; head: number } }; answer: number };
  /** The ink of a text: of each column the mean weight from these rows, or of each row the summed weight on these columns. */
  profile: { ask: Drawn & { view: View; side: "row" | "column"; places: number[]; normed: boolean }; answer: Float32Array };
  /** What lies between two sets of tokens, the mean over the queries, in every head of a layer. */
  masses: { ask: { trace: number; layer: number } & Sets; answer: Float32Array };
  chain: { ask: HeadName & { i: number; j: number }; answer: Chain };
  /** What each token brings to token i, layer by layer. */
  follow: { ask: { trace: number; i: number }; answer: Followed };
}

export class Desk {
  private readonly traces = new Map<number, HeldTrace>();
  private readonly arriving = new Map<number, { whole: Uint8Array; got: number }>();
  private sampled: { key: string; held: Sample } | null = null;

  answer<K extends keyof Questions>(kind: K, ask: Questions[K]["ask"]): Questions[K]["answer"] {
    const answers: { [N in keyof Questions]: (ask: Questions[N]["ask"]) => Questions[N]["answer"] } = {
      part: ({ id, base64, bytes }) => {
        const part = fromBase64(base64);
        const { whole, got } = this.arriving.get(id) ?? { whole: new Uint8Array(bytes), got: 0 };
        if (got + part.length > bytes) throw new FormatError(`the page contains more than the ${bytes} bytes of its trace`);
        whole.set(part, got);
        this.arriving.set(id, { whole, got: got + part.length });
        return null;
      },
      open: ({ id, bytes }) => {
        const came = this.arriving.get(id);
        this.arriving.delete(id);
        if (came && came.got < came.whole.length) {
          throw new FormatError(`the page contains only ${came.got} of the ${came.whole.length} bytes of its trace: it is truncated`);
        }
        const held = new HeldTrace(bytes ? new Uint8Array(bytes) : (came?.whole ?? new Uint8Array(0)), id);
        this.traces.set(id, held);
        return held.info;
      },
      close: ({ id }) => {
        this.traces.delete(id);
        return null;
      },
      copy: ({ id, from, bytes }) => toBase64(this.held({ trace: id }).raw.subarray(from, from + bytes)),
      feed: ({ piece, data }) => {
        this.traces.get(piece.trace)?.feed(piece, data);
        return null;
      },
      measure: ({ masses, view = null, normed = false, ...name }) => {
        const { keys, queries, roles } = this.held(name).info;
        return measure(this.head(name), withMasses(roles, masses, keys), keys === queries, view, normed);
      },
      rows: ({ view, from, to, normed, ...name }) =>
        viewRows(this.drawn(name), view, from, to, 0, size(view.columns), normed),
      tile: ({ minus, view, box, height, width, normed, ...name }) =>
        minus
          ? difference({ heads: this.drawn(name), view, normed }, { heads: this.drawn(minus), view: minus.view, normed }, box, height, width).data
          : tile(this.drawn(name), view, box, height, width, normed),
      distance: ({ to, ...name }) => {
        const key = `${name.trace}/${name.layer}/${name.head}`;
        if (this.sampled?.key !== key) this.sampled = { key, held: sample(this.head(name)) };
        return distance(this.sampled.held, sample(this.head({ ...to, trace: name.trace })));
      },
      moved: ({ minus, view, height, width, ...name }) =>
        difference({ heads: this.drawn(name), view, normed: false }, { heads: this.drawn(minus), view: minus.view, normed: false }, [0, size(view.rows), 0, size(view.columns)], height, width),
      profile: ({ view, side, places, normed, ...name }) => (side === "row" ? looksAt : lookedAtBy)(this.drawn(name), view, places, normed),
      masses: ({ trace, layer, ...sets }) => {
        const held = this.held({ trace });
        return Float32Array.from({ length: held.info.heads }, (_, head) => massBetween(held.some(layer, head, sets.queries), sets));
      },
      chain: ({ i, j, ...name }) => chain(this.head(name), this.held(name).values(name.layer, name.head), i, j),
      follow: ({ i, ...name }) => this.held(name).follow(i),
    };
    return answers[kind](ask);
  }

  private held({ trace }: { trace: number }): HeldTrace {
    const held = this.traces.get(trace);
    if (!held) throw new Error(`trace ${trace} is not open`);
    return held;
  }

  private drawn({ mean, ...name }: Drawn): HeadArrays[] {
    return mean ? mean.map(([layer, head]) => this.head({ ...name, layer, head })) : [this.head(name)];
  }

  private head(name: HeadName): HeadArrays {
    return this.held(name).head(name.layer, name.head);
  }
}
