// The worker: a desk behind a message port.
import { Desk, type Questions } from "./desk";

const desk = new Desk();
const port = self as unknown as Worker;

port.onmessage = ({ data }: MessageEvent<{ id: number; kind: keyof Questions; ask: never }>) => {
  try {
    const found = desk.answer(data.kind, data.ask);
    port.postMessage({ id: data.id, found }, found instanceof Float32Array ? [found.buffer as ArrayBuffer] : []);
  } catch (error) {
    port.postMessage({ id: data.id, error: error instanceof Error ? error.message : String(error) });
  }
};
