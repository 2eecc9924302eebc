// Asks the worker. Questions that nobody waits for any more are dropped before they are sent.
import { Desk, type Questions } from "./desk";
import ArithmeticWorker from "./worker?worker&inline";

interface Waiting {
  kind: keyof Questions;
  ask: unknown;
  lane: string | undefined;
  urgency: Urgency;
  resolve(found: never): void;
  reject(error: Error): void;
}

/** What a person waits for goes first, then what they may ask next, then what fills up in the background. */
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
      this.worker = new ArithmeticWorker();
      this.worker.onmessage = ({ data }) => this.arrived(data);
      this.worker.onerror = () => this.fallBack();
    } catch {
      this.fallBack();
    }
  }

  /**
   * One question. In a lane, only the newest waits: older ones that were not sent yet are rejected as Superseded.
   */
  ask<K extends keyof Questions>(
    kind: K, ask: Questions[K]["ask"], lane?: string, urgency: Urgency = "now",
  ): Promise<Questions[K]["answer"]> {
    return new Promise((resolve, reject) => {
      if (lane) {
        for (const old of this.queue.filter((one) => one.lane === lane)) old.reject(new Superseded(lane));
        this.queue = this.queue.filter((one) => one.lane !== lane);
      }
      const one: Waiting = { kind, ask, lane, urgency, resolve, reject };
      const at = this.queue.findIndex((other) => ORDER[other.urgency] > ORDER[urgency]);
      this.queue.splice(at < 0 ? this.queue.length : at, 0, one);
      this.pump();
    });
  }

  private pump(): void {
    if (this.busy) return;
    const one = this.queue.shift();
    if (!one) return;
    this.busy = { ...one, id: this.next++ };
    const { id, kind, ask } = this.busy;
    if (this.worker) this.worker.postMessage({ id, kind, ask });
    else {
      this.desk ??= new Desk();
      const desk = this.desk;
      setTimeout(() => {
        try {
          this.arrived({ id, found: desk.answer(kind, ask as never) as never });
        } catch (error) {
          this.arrived({ id, error: error instanceof Error ? error.message : String(error) });
        }
      });
    }
  }

  private arrived({ id, found, error }: { id: number; found?: never; error?: string }): void {
    const one = this.busy;
    if (!one || one.id !== id) return;
    this.busy = null;
    if (error !== undefined) one.reject(new Error(error));
    else one.resolve(found as never);
    this.pump();
  }

  /** A frame whose rules forbid workers: the same arithmetic in the page itself. */
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
