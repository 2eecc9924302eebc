// The open traces, and the selection among them and within them.
import { batch, computed, effect, signal } from "@preact/signals";
import { engine } from "../trace/engine";
import type { Run } from "../model/ask";
import type { TraceInfo } from "../trace/trace";
import { makeShown, readable, type Shown } from "../text/shown";
import * as state from "./state";

export interface Doc {
  id: number;
  name: string;
  info: TraceInfo;
  /** The id that runs call it by: the server's, or its number in the file; null for a file that was opened. */
  remote: string | null;
  /** For a changed run, its original trace and the record that says what was changed. */
  of: { origin: number; run: Run } | null;
}

export const docs = signal<Doc[]>([]);
export const failure = signal<string | null>(null);
/** What went wrong, in its own words. */
export const reason = (error: unknown): string => (error instanceof Error ? error.message : String(error));
export const doc = computed<Doc | null>(() => docs.value[Math.min(state.trace.value, docs.value.length - 1)] ?? null);
/** The panes that the text has: not of each is a word followed. */
export const panes = computed(() => state.PANES.filter((name) => name !== "follow" || doc.value?.info.followed));
/** The head in view. */
export const at = computed(() => {
  const [layers, heads] = [doc.value?.info.layers.length ?? 1, doc.value?.info.heads ?? 1];
  const [layer, head] = [Math.min(state.layer.value, layers - 1), Math.min(state.head.value, heads - 1)];
  return { layer, head, n: layer * heads + head };
});
/** The nth head, layer by layer. */
export const headOf = ({ heads }: TraceInfo, n: number): { layer: number; head: number } => ({ layer: Math.floor(n / heads), head: n % heads });
/** Thumbnails that arrive make another info of the same text. */
const text = computed(() => doc.value?.info.queries);
export const shownOf = (info: TraceInfo | null | undefined): Shown | null => (info ? makeShown(info, state.filter.value, state.special.value, state.merged.value) : null);
export const shown = computed(() => shownOf(text.value && doc.peek()?.info));
const placeIn = (of: Int32Array | undefined, token: number | null): number | null => {
  const index = of?.[token ?? -1] ?? -1;
  return index < 0 ? null : index;
};
export const row = computed(() => placeIn(shown.value?.rowOf, state.query.value));
export const column = computed(() => placeIn(shown.value?.columnOf, state.key.value));
/** The row and column that the panels show: hovered, otherwise pinned. */
export const lookedRow = computed(() => state.hoverRow.value ?? row.value);
export const lookedColumn = computed(() => state.hoverColumn.value ?? column.value);

/** The cell in the cell panel: pins at once, the pointer once it rests. */
export const rested = signal<{ row: number | null; column: number | null }>({ row: null, column: null });
const REST = 70;

export function followRest(): void {
  let waiting = 0;
  effect(() => {
    const now = { row: lookedRow.value, column: lookedColumn.value };
    clearTimeout(waiting);
    const set = (): void => {
      const { row: r, column: c } = rested.peek();
      if (r !== now.row || c !== now.column) rested.value = now;
    };
    if (state.hoverRow.value === null && state.hoverColumn.value === null) set();
    else waiting = window.setTimeout(set, REST);
  });
}

/** What was pointed at is not pointed at in another text. */
export function followText(): void {
  effect(() => {
    void doc.value?.id;
    state.hoverHead.value = state.hoverRow.value = state.hoverColumn.value = null;
  });
}

/** A head's numbers in the model. */
export const headName = (info: TraceInfo, { layer, head }: { layer: number; head: number }): { l: number; h: number } => ({
  l: info.layerNumbers[layer], h: info.headNumbers[layer][head],
});

/** True if every layer has the heads of the first. */
export const sameHeads = ({ headNumbers }: TraceInfo): boolean => headNumbers.every((numbers) => numbers.join() === headNumbers[0].join());

export function headLabel(info: TraceInfo, n: number): string {
  const { l, h } = headName(info, headOf(info, n));
  return `${l}.${h}`;
}

/** The text, with its pair; null where it is not known. */
export const wholeText = ({ text, pair }: TraceInfo): string | null => (pair === null ? text : `${text} | ${pair}`);

/** The chunks of what the page holds, by the ids of their elements; each is removed as it is read. */
export function* chunks(id: (part: number) => string): Generator<string> {
  for (let part = 0; ; part++) {
    const element = document.getElementById(id(part));
    if (!element) return;
    const base64 = element.textContent ?? "";
    element.remove();
    yield base64;
  }
}

let nextId = 0;

/** Bytes of a trace file, or their base64 in chunks, each released once it is sent. */
type Source = { bytes: ArrayBuffer } | { parts: Iterable<string>; all: number };

export async function openTrace(
  source: Source, name: string | null, remote: string | null = null, of: Doc["of"] = null, put: ((one: Doc) => void) | null = null,
): Promise<Doc> {
  const id = nextId++;
  if ("parts" in source) for (const base64 of source.parts) await engine.ask("part", { id, base64, bytes: source.all });
  const info = await engine.ask("open", "parts" in source ? { id } : { id, bytes: source.bytes });
  const one: Doc = { id, name: name ?? wholeText(info) ?? readable(info.queries, 12), info, remote, of };
  if (put) put(one);
  else docs.value = [...docs.value, one];
  return one;
}

/** A trace's place; thumbnails that arrive make another object of it. */
export const placeOfDoc = ({ id }: Doc): number => docs.value.findIndex((other) => other.id === id);

/** The open trace that runs call so. */
export const docOf = (name: string | null): Doc | undefined => docs.value.find(({ remote }) => remote === name);

/** Put a head of a text into slot B, or none; by default A's, until one is chosen there. */
export function setB(trace: number | null, layer: number | null = null, head: number | null = null): void {
  batch(() => {
    state.other.value = trace;
    state.otherLayer.value = layer;
    state.otherHead.value = head;
  });
}

/** Select another trace. If it was the one compared with, the two are swapped. */
export function lookAt(index: number): void {
  if (!docs.value[index]) return;
  batch(() => {
    if (state.other.value === index) setB(state.trace.value);
    state.trace.value = index;
  });
}

export function closeTrace(index: number): void {
  const opened = docs.value[index];
  if (!opened || docs.value.length < 2) return;
  batch(() => {
    docs.value = docs.value.filter((other) => other !== opened);
    setB(null);
    if (state.trace.value >= index && state.trace.value > 0) state.trace.value--;
  });
  void engine.ask("close", { id: opened.id });
}
