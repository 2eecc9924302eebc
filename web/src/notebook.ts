// In a notebook's widget: the frame's parent keeps the page's state, and may set it; a kernel has the rest of a large trace.
import { effect } from "@preact/signals";
import { around } from "./state/appearance";
import { fromHash, toHash } from "./state/hash";
import { correct, goTo } from "./state/opening";
import { FIELDS } from "./state/state";
import * as state from "./state/state";
import { at, doc, headName } from "./state/store";

/** What the widget names its frame: this, then the state and the notebook's theme. */
const MARK = "headscope:";
const frame = typeof window === "undefined" ? "" : window.name;
const named = frame.startsWith(MARK) ? new URLSearchParams(frame.slice(MARK.length)) : null;

/** The state to begin with; null where the page is not in a widget. */
export const told = ((): string | null => {
  const theme = named?.get("around");
  if (theme === "dark" || theme === "light") around.value = theme;
  named?.delete("around");
  return named?.toString() ?? null;
})();

/** Layer, head, query and key, by number; null for what isn't pinned. */
type Selection = [number, number, number | null, number | null];

interface Told {
  state?: string;
  selection?: Selection | null;
  around?: "light" | "dark" | null;
}

const post = (message: object): void => parent.postMessage({ headscope: message }, "*");

function selection(): Selection | null {
  const info = doc.value?.info;
  if (!info) return null;
  const { l, h } = headName(info, at.value);
  return [l, h, state.query.value, state.key.value];
}

const isPlace = (value: unknown): boolean => Number.isInteger(value);

function hear({ state: hash, selection: cell, around: theme }: Told): void {
  if (theme !== undefined) around.value = theme === "dark" || theme === "light" ? theme : null;
  const opened = doc.peek();
  if (!opened) return;
  if (typeof hash === "string" && hash !== toHash(FIELDS)) {
    fromHash(FIELDS, hash);
    correct();
  }
  if (!Array.isArray(cell) || cell.join() === selection()?.join() || !isPlace(cell[0]) || !isPlace(cell[1])) return;
  const place = (value: number | null | undefined): number | null => (isPlace(value) ? value! : null);
  goTo(opened.info, { layer: cell[0], head: cell[1], query: place(cell[2]), key: place(cell[3]) });
}

interface Waits { resolve(numbers: Float32Array): void; reject(error: Error): void }

const waits = new Map<number, Waits>();
let next = 0;

/** A part of a trace, from the kernel. */
export function fromKernel(request: object): Promise<Float32Array> {
  return new Promise((resolve, reject) => {
    const id = next++;
    waits.set(id, { resolve, reject });
    post({ id, request });
  });
}

/** Say what is selected, and do what the widget says. */
export function followNotebook(): void {
  if (told === null) return;
  let waiting = 0;
  effect(() => {
    const cell = selection();
    const hash = toHash(FIELDS);
    if (!cell) return;
    clearTimeout(waiting);
    waiting = window.setTimeout(() => post({ state: hash, selection: cell }), 60);
  });
  addEventListener("message", ({ source, data }: MessageEvent<{ headscope?: Told & { id?: number; bytes?: ArrayBuffer; error?: string } }>) => {
    const message = data?.headscope;
    if (source !== parent || typeof message !== "object") return;
    const { id, bytes, error } = message;
    if (id === undefined) return hear(message);
    const held = waits.get(id);
    waits.delete(id);
    if (bytes) held?.resolve(new Float32Array(bytes));
    else held?.reject(new Error(error));
  });
  post({ ready: true });
}
