// What a worker runs: a desk behind a message port. Built as one function (vite.config.ts), which the page has once.
import { Desk, type Questions } from "./desk";
import { Absent } from "./trace";

export { entropy, plain, sees, size } from "./cells";
export { everyRow, siftedShare } from "./measures";
export { pooled } from "./pooling";
export { plainLabel } from "./trace";
export { Absent, Desk };

/** Arrays made for this answer are transferred, not copied. */
function buffers(result: unknown): ArrayBuffer[] {
  if (result instanceof Float32Array) return [result.buffer as ArrayBuffer];
  const data = (result as { data?: unknown } | null)?.data;
  return data instanceof Float32Array ? [data.buffer as ArrayBuffer] : [];
}

export function serve(port: Worker): void {
  const desk = new Desk();
  port.onmessage = ({ data }: MessageEvent<{ id: number; kind: keyof Questions; ask: never }>) => {
    try {
      const result = desk.answer(data.kind, data.ask);
      port.postMessage({ id: data.id, result }, buffers(result));
    } catch (error) {
      if (error instanceof Absent) port.postMessage({ id: data.id, absent: error.piece });
      else port.postMessage({ id: data.id, error: error instanceof Error ? error.message : String(error) });
    }
  };
}
