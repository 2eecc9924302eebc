// The model in the page: WordPiece, a forward pass, and answers to the page's questions. Runs in a worker.
import { Desk, type Line, type Without } from "./answers";
import { Model } from "./model";
import type { Catalog } from "./tracefile";
import { Refused, type Change } from "../model/backend";

export { Desk } from "./answers";
export { forward, rerun } from "./forward";
export { Model } from "./model";
export { softmax } from "./products";
export { maskedWord } from "./tops";
export { WordPiece } from "./wordpiece";

/** What the page sends. `study` and `without` answer in several parts; `stop` ends one of them. */
export type Question =
  | { id: number; kind: "load"; gzip: ArrayBuffer; catalog: Catalog }
  | { id: number; kind: "trace"; change: Change }
  | { id: number; kind: "study"; change: Change }
  | { id: number; kind: "without"; trace: string }
  | { id: number; kind: "cosine"; a: string; b: string }
  | { id: number; kind: "stop" };

async function unpacked(gzip: ArrayBuffer): Promise<Uint8Array> {
  const plain = new Blob([gzip]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(plain).arrayBuffer());
}

/** Milliseconds of background work after which the worker looks for other questions. */
const SLICE = 30;

export function serve(port: Worker): void {
  let desk: Desk | null = null;
  const stopped = new Set<number>();
  const pause = new MessageChannel();
  const turn = (): Promise<void> => new Promise((resolve) => { pause.port1.onmessage = () => resolve(); pause.port2.postMessage(null); });
  /** One long answer at a time; the others wait. */
  let waiting: Promise<void> = Promise.resolve();
  const several = async (id: number, parts: Generator<Line | Without>): Promise<void> => {
    let began = performance.now();
    for (const part of parts) {
      port.postMessage({ id, part });
      if (performance.now() - began > SLICE) {
        await turn();
        began = performance.now();
      }
      if (stopped.delete(id)) break;
    }
    port.postMessage({ id, result: null });
  };
  const refuse = (id: number, error: unknown): void =>
    port.postMessage(error instanceof Refused ? { id, refused: error.message } : { id, error: error instanceof Error ? error.message : String(error) });
  port.onmessage = ({ data }: MessageEvent<Question>) => {
    const { id } = data;
    const answer = async (): Promise<void> => {
      if (data.kind === "load") {
        const model = new Model(await unpacked(data.gzip));
        desk = new Desk(model, data.catalog);
        port.postMessage({ id, result: null });
      } else if (data.kind === "stop") stopped.add(id);
      else if (!desk) throw new Error("the model is not loaded");
      else if (data.kind === "trace") {
        const traced = desk.trace(data.change);
        port.postMessage({ id, result: traced }, [traced.bytes]);
      } else if (data.kind === "cosine") port.postMessage({ id, result: desk.cosine(data.a, data.b) });
      else {
        const parts = data.kind === "study" ? desk.study(data.change) : desk.without(data.trace);
        const before = waiting;
        waiting = before.then(() => (stopped.delete(id) ? undefined : several(id, parts))).catch((error: unknown) => refuse(id, error));
        await waiting;
      }
    };
    answer().catch((error: unknown) => refuse(id, error));
  };
}

declare const WorkerGlobalScope: (new () => object) | undefined;
if (typeof WorkerGlobalScope !== "undefined" && self instanceof WorkerGlobalScope) serve(self as unknown as Worker);
