// What a worker runs: a desk behind a message port. Built as one function (vite.config.ts), which the page has once.
import { Desk, type Questions } from "./desk";
import { Absent, type Piece } from "./trace";

export { plain, rowEntropy, sees, size } from "./cells";
export { everyRow, siftedShare } from "./measures";
export { pooled } from "./pooling";
export { plainLabel } from "./trace";

/** What a message asks, and what its answer says: the answer, the part that it lacks, or why there is none. */
export interface Asked { id: number; kind: keyof Questions; ask: unknown }
export interface Answer { id: number; result?: unknown; absent?: Piece; error?: string }

/** A desk behind messages. */
export function open(): (message: Asked) => Answer {
  const desk = new Desk();
  return ({ id, kind, ask }) => {
    try {
      return { id, result: desk.answer(kind, ask as never) };
    } catch (error) {
      if (error instanceof Absent) return { id, absent: error.piece };
      return { id, error: error instanceof Error ? error.message : String(error) };
    }
  };
}

/** Arrays made for this answer are transferred, not copied. */
function buffers(result: unknown): ArrayBuffer[] {
  if (result instanceof Float32Array) return [result.buffer as ArrayBuffer];
  const data = (result as { data?: unknown } | null)?.data;
  return data instanceof Float32Array ? [data.buffer as ArrayBuffer] : [];
}

export function serve(port: Worker): void {
  const desk = open();
  port.onmessage = ({ data }: MessageEvent<Asked>) => {
    const answer = desk(data);
    port.postMessage(answer, buffers(answer.result));
  };
}
