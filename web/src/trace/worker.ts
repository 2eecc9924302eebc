// The worker: a desk behind a message port.
import { Desk, type Questions } from "./desk";

const desk = new Desk();
const port = self as unknown as Worker;

/** Arrays that were made for this answer are handed over, not copied. */
function buffers(found: unknown): ArrayBuffer[] {
  if (found instanceof Float32Array) return [found.buffer as ArrayBuffer];
  const data = (found as { data?: unknown } | null)?.data;
  return data instanceof Float32Array ? [data.buffer as ArrayBuffer] : [];
}

port.onmessage = ({ data }: MessageEvent<{ id: number; kind: keyof Questions; ask: never }>) => {
  try {
    const found = desk.answer(data.kind, data.ask);
    port.postMessage({ id: data.id, found }, buffers(found));
  } catch (error) {
    port.postMessage({ id: data.id, error: error instanceof Error ? error.message : String(error) });
  }
};
