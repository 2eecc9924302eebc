// Sends requests to the worker. Superseded requests are dropped before they are sent.
import type { Desk, Questions } from "./desk";
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

class Engine {
  private worker: Worker | null = null;
  private desk: Desk | null = null;
  private next = 0;
  private busy: (Waiting & { id: number }) | null = null;
  private queue: Waiting[] = [];

  constructor() {
    try {
      this.worker = new Worker(URL.createObjectURL(new Blob([`(${parts.toString()})().serve(self)`], { type: "text/javascript" })));
      this.worker.onmessage = ({ data }) => this.arrived(data);
      this.worker.onerror = () => this.fallBack();
    } catch {
      this.fallBack();
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
        for (const old of this.queue.filter((request) => request.lane === lane)) old.reject(new Superseded(lane));
        this.queue = this.queue.filter((request) => request.lane !== lane);
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
      this.desk ??= new (parts().Desk)();
      const desk = this.desk;
      setTimeout(() => {
        try {
          this.arrived({ id, result: desk.answer(kind, ask as never) as never });
        } catch (error) {
          this.arrived({ id, error: error instanceof Error ? error.message : String(error) });
        }
      });
    }
  }

  private arrived({ id, result, error }: { id: number; result?: never; error?: string }): void {
    const request = this.busy;
    if (!request || request.id !== id) return;
    this.busy = null;
    if (error !== undefined) request.reject(new Error(error));
    else request.resolve(result as never);
    this.pump();
  }

  /** Without workers (a frame's policy may forbid them): the same arithmetic in the page itself. */
  private fallBack(): void {
    this.worker?.terminate();
    this.worker = null;
    const again = this.busy;
    this.busy = null;
    if (again) this.queue.unshift(again);
    this.pump();
  }
}

export const engine = new Engine();
