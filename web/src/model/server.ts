// The server as a back end: headscope/page/server.py.
import type { Answered, Backend, Change, Line, Progress } from "./backend";
import { Refused } from "./backend";
import type { Run } from "./ask";
import { start } from "./remote";

type Received = Line & { id?: string; bytes?: number; refused?: string } & Partial<Omit<Answered, "bytes">>;

const token = (): Record<string, string> => ({ "x-headscope-token": start.value.token ?? "" });

/** The server's answer to a question. */
export async function post(path: string, body: object, signal: AbortSignal | null): Promise<Response> {
  const response = await fetch(path, { method: "POST", signal, headers: { "content-type": "application/json", ...token() }, body: JSON.stringify(body) });
  if (!response.ok) throw new Refused((await response.text()).slice(0, 600));
  return response;
}

export class Server implements Backend {
  /** The answer is lines of JSON with the progress, then one with the size, then the trace file. */
  async trace(change: Change, signal: AbortSignal, progress: (now: Progress) => void): Promise<Answered> {
    const reader = (await post("api/trace", change, signal)).body!.getReader();
    let file: Received | null = null;
    const parts: Uint8Array[] = [];
    for await (const line of lines(reader, parts)) {
      if (line.id) file = line;
      else progress({ done: line.done!, all: line.all! });
    }
    if (!file) throw new TypeError("cut off");
    let got = parts[0].length;
    while (got < file.bytes!) {
      progress({ done: got, all: file.bytes!, bytes: true });
      const { done, value } = await reader.read();
      if (done) throw new TypeError("cut off");
      parts.push(value);
      got += value.length;
    }
    const bytes = new Uint8Array(got);
    let at = 0;
    for (const part of parts) {
      bytes.set(part, at);
      at += part.length;
    }
    return { id: file.id!, bytes: bytes.buffer, outcomes: file.outcomes!, run: file.run ?? null };
  }

  async *study(change: Change, signal: AbortSignal): AsyncIterable<Line> {
    yield* lines((await post("api/study", change, signal)).body!.getReader());
  }

  async runs(): Promise<Run[] | null> {
    const response = await fetch("api/runs", { headers: token() }).catch(() => null);
    return response?.ok ? await response.json() as Run[] : null;
  }
}

/** The lines of JSON at the beginning of an answer; after one with an id, `rest` has the bytes that follow it. */
async function* lines(reader: ReadableStreamDefaultReader<Uint8Array>, rest?: Uint8Array[]): AsyncGenerator<Received> {
  let buffer = new Uint8Array(0);
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const joined = new Uint8Array(buffer.length + value.length);
    joined.set(buffer);
    joined.set(value, buffer.length);
    buffer = joined;
    for (let end = buffer.indexOf(10); end >= 0; end = buffer.indexOf(10)) {
      const line = JSON.parse(new TextDecoder().decode(buffer.subarray(0, end))) as Received;
      buffer = buffer.subarray(end + 1);
      if (line.refused) throw new Refused(line.refused);
      if (line.id) rest?.push(buffer);
      yield line;
      if (line.id) return;
    }
  }
}
