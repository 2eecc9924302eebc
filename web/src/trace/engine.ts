// Sends requests to the worker. Superseded requests are dropped before they are sent.
import type { Questions } from "./desk";
import type { Piece } from "./trace";
import type { Answer, Asked } from "./worker";
import parts from "./worker?function";

interface Waiting {
  kind: keyof Questions;
  ask: unknown;
  lane: string | undefined;
  urgency: Urgency;
  resolve(result: never): void;
  reject(error: Error): void;
}

/** Priorities: first what the reader waits for, then what they may request next, then background work. */
export type Urgency = "now" | "ahead" | "background";
const ORDER: Record<Urgency, number> = { now: 0, ahead: 1, background: 2 };

export class Superseded extends Error {}

/** Where the arrays are that this page lacks. */
interface Supplier {
  /** The answer, where a question about this trace is answered elsewhere; else null. */
  answer(kind: keyof Questions, ask: unknown, urgency: Urgency, left: AbortSignal): Promise<unknown> | null;
  piece(piece: Piece, urgency: Urgency): Promise<Float32Array>;
}

class Engine {
  /** Null where a frame's policy forbids workers: the same arithmetic then runs in the page itself. */
  private worker: Worker | null = null;
  private here: ((message: Asked) => Answer) | null = null;
  private next = 0;
  private busy: (Waiting & { id: number }) | null = null;
  private queue: Waiting[] = [];
  /** Requests whose pieces are being fetched. */
  private out: Waiting[] = [];
  private readonly lanes = new Map<string, AbortController>();
  supplier: Supplier | null = null;

  constructor() {
    try {
      this.worker = new Worker(URL.createObjectURL(new Blob([`(${parts.toString()})().serve(self)`], { type: "text/javascript" })));
      this.worker.onmessage = ({ data }) => this.arrived(data);
      this.worker.onerror = () => {
        this.worker!.terminate();
        this.worker = null;
        if (this.busy) this.queue.unshift(this.busy);
        this.busy = null;
        this.pump();
      };
    } catch {
      // forbidden at once, not by an event
    }
  }

  /**
   * Send a request. In a lane only the newest waits: older ones that were not sent yet are rejected with Superseded.
   */
  ask<K extends keyof Questions>(
    kind: K, ask: Questions[K]["ask"], lane?: string, urgency: Urgency = "now",
  ): Promise<Questions[K]["answer"]> {
    return new Promise((resolve, reject) => {
      if (lane) {
        for (const old of [...this.queue, ...this.out].filter((request) => request.lane === lane)) old.reject(new Superseded(lane));
        this.queue = this.queue.filter((request) => request.lane !== lane);
        this.out = this.out.filter((request) => request.lane !== lane);
        this.lanes.get(lane)?.abort(new Superseded(lane));
      }
      const left = new AbortController();
      const elsewhere = this.supplier?.answer(kind, ask, urgency, left.signal);
      if (elsewhere) {
        if (lane) this.lanes.set(lane, left);
        elsewhere.then(resolve as (answer: unknown) => void, reject);
        return;
      }
      const request: Waiting = { kind, ask, lane, urgency, resolve, reject };
      const at = this.queue.findIndex((other) => ORDER[other.urgency] > ORDER[urgency]);
      this.queue.splice(at < 0 ? this.queue.length : at, 0, request);
      this.pump();
    });
  }

  private pump(): void {
    if (this.busy) return;
    const request = this.queue.shift();
    if (!request) return;
    this.busy = { ...request, id: this.next++ };
    const { id, kind, ask } = this.busy;
    if (this.worker) this.worker.postMessage({ id, kind, ask });
    else {
      const desk = (this.here ??= parts().open());
      setTimeout(() => this.arrived(desk({ id, kind, ask })));
    }
  }

  private arrived({ id, result, error, absent }: Answer): void {
    const request = this.busy;
    if (!request || request.id !== id) return;
    this.busy = null;
    if (absent) this.supply(request, absent);
    else if (error !== undefined) request.reject(new Error(error));
    else request.resolve(result as never);
    this.pump();
  }

  /** Fetch what an answer lacks, and request the answer again. */
  private supply(request: Waiting, piece: Piece): void {
    this.out.push(request);
    const waits = (): boolean => this.out.includes(request);
    const end = (error: Error): void => {
      if (waits()) request.reject(error);
      this.out = this.out.filter((held) => held !== request);
    };
    if (!this.supplier) return end(new Error(`part ${piece.want} of trace ${piece.trace} is not here`));
    this.supplier.piece(piece, request.urgency).then((data) => {
      const fed: Waiting = { kind: "feed", ask: { piece, data }, lane: undefined, urgency: "now", resolve: () => undefined, reject: end };
      this.queue.unshift(...(waits() ? [fed, request] : [fed]));
      this.out = this.out.filter((held) => held !== request);
      this.pump();
    }, end);
  }
}

export const engine = new Engine();
