// A model in the page as a back end: a worker that has the weights which the page holds.
import type { Run } from "./ask";
import { Refused, type Answered, type Backend, type Change, type Line } from "./backend";
import { catalog, massTokens } from "../heads/catalog";
import type { Shares, Without } from "../encoder/answers";
import type { Question } from "../encoder";

type Bare<Q> = Q extends unknown ? Omit<Q, "id"> : never;
type Message = { id: number; part?: unknown; result?: unknown; refused?: string; error?: string };

export class Local implements Backend {
  private readonly worker: Worker;
  private readonly open = new Map<number, (message: Message) => void>();
  private next = 0;

  /** @param script the encoder's code, which Python puts beside the weights. */
  constructor(script: string) {
    this.worker = new Worker(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
    this.worker.onmessage = ({ data }: MessageEvent<Message>) => this.open.get(data.id)?.(data);
    this.worker.onerror = (event) => {
      for (const [id, take] of this.open) take({ id, error: event.message });
    };
  }

  async load(gzip: ArrayBuffer): Promise<void> {
    await this.one({ kind: "load", gzip, catalog: { names: catalog.value.map(({ name }) => name), masses: massTokens() } }, [gzip]);
  }

  async trace(change: Change): Promise<Answered> {
    return await this.one({ kind: "trace", change }) as Answered;
  }

  study(change: Change, signal: AbortSignal): AsyncIterable<Line> {
    return this.several<Line>({ kind: "study", change }, signal);
  }

  /** The guess for the first [MASK] of a text without each head in turn. */
  without(trace: string, signal: AbortSignal): AsyncIterable<Without> {
    return this.several<Without>({ kind: "without", trace }, signal);
  }

  async cosine(a: string, b: string): Promise<Shares> {
    return await this.one({ kind: "cosine", a, b }) as Shares;
  }

  async runs(): Promise<Run[]> {
    return [];
  }

  private async one(question: Bare<Question>, moved: Transferable[] = []): Promise<unknown> {
    const id = this.next++;
    return new Promise((resolve, reject) => {
      this.open.set(id, ({ result, refused, error }) => {
        this.open.delete(id);
        if (refused !== undefined || error !== undefined) reject(refused === undefined ? new Error(error) : new Refused(refused));
        else resolve(result);
      });
      this.worker.postMessage({ ...question, id }, moved);
    });
  }

  private async *several<T>(question: Bare<Question>, signal: AbortSignal): AsyncGenerator<T> {
    const id = this.next++;
    const arrived: Message[] = [];
    let wake = (): void => undefined;
    this.open.set(id, (message) => { arrived.push(message); wake(); });
    signal.addEventListener("abort", () => { this.worker.postMessage({ id, kind: "stop" }); wake(); });
    this.worker.postMessage({ ...question, id });
    try {
      for (;;) {
        signal.throwIfAborted();
        const message = arrived.shift();
        if (!message) await new Promise<void>((resolve) => { wake = resolve; });
        else if (message.refused !== undefined) throw new Refused(message.refused);
        else if (message.error !== undefined) throw new Error(message.error);
        else if ("part" in message) yield message.part as T;
        else return;
      }
    } finally {
      this.open.delete(id);
    }
  }
}
