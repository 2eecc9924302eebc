// Where a page begins: on a finding where its address says nothing, else where the address says, as far as it can.
import { batch, effect, signal, type Signal } from "@preact/signals";
import { isStatistic } from "../heads/catalog";
import { placeOf } from "./comparing";
import { TANGLE } from "../text/sentence";
import * as state from "./state";
import { steps, unread } from "./steps";
import { doc, docs, panes, type Doc } from "./store";
import type { Word } from "../words";
import type { Parts } from "../words/speech";
import type { TraceInfo } from "../trace/trace";

export function openOnFinding({ info }: Doc): void {
  batch(() => {
    if (Math.max(info.queries.tokens.length, info.keys.tokens.length) > TANGLE) state.mode.value = "text";
    if (!info.opening) return;
    const pane = state.pane.value;
    goTo(info, info.opening);
    state.pane.value = pane;
    if (pane === "head") state.statistic.value = "weight";
  });
}

/** Look at a head, and pin a cell of it, all by number. */
export function goTo(info: TraceInfo, cell: { layer: number; head: number; query?: number | null; key?: number | null }): void {
  const place = placeOf(info, cell.layer, cell.head);
  if (!place) return;
  batch(() => {
    state.pane.value = "head";
    state.box.value = null;
    state.layer.value = place.layer;
    state.head.value = place.head;
    state.query.value = cell.query ?? null;
    state.key.value = cell.key ?? null;
    state.found.row = state.found.column = true;
  });
}

/** What the address asked for and the page lacks, until the reader goes on. */
export const remarks = signal<readonly { word: Word; parts: Parts }[]>([]);

export function followRemarks(): void {
  effect(() => {
    void steps.value;
    remarks.value = [];
  });
  // tokens of a segment and a pane that another text has, and this one lacks
  leave("of", state.filter, "all", ({ queries }) => !queries.segments.includes(1));
  leave("pane", state.pane, "head", () => !panes.value.includes(state.pane.value));
}

function leave<T>(name: string, held: Signal<T>, instead: T, lacks: (info: TraceInfo) => boolean): void {
  effect(() => {
    if (held.value === instead || !doc.value || !lacks(doc.value.info)) return;
    unread.value = [...unread.peek(), `${name}=${held.value}`];
    held.value = instead;
  });
}

/** The sentence that an address brings to a page with a model, until it is shown: what else the address says is of it. */
export const brought = signal("");

/** What an address names and the page lacks is corrected in the address, and said. */
export function correct(): void {
  if (brought.value) return;
  const now: { word: Word; parts: Parts }[] = [];
  const put = <T,>(held: Signal<T>, instead: T, word: Word, parts: Parts): void => {
    now.push({ word, parts });
    held.value = instead;
  };
  const isBeyond = ({ value }: { value: number | null }, last: number): boolean => value !== null && value > last;
  batch(() => {
    for (const text of unread.value) now.push({ word: "address_unread", parts: { text } });
    const lastTrace = docs.value.length - 1;
    if (isBeyond(state.trace, lastTrace)) put(state.trace, 0, "address_trace", { n: state.trace.value, last: lastTrace });
    if (isBeyond(state.other, lastTrace)) put(state.other, null, "address_trace", { n: state.other.value!, last: lastTrace });
    const { info } = doc.value!;
    const last = { layer: info.layers.length - 1, head: info.heads - 1 };
    if (isBeyond(state.layer, last.layer)) put(state.layer, last.layer, "address_layer", { n: state.layer.value, last: info.layerNumbers[last.layer] });
    if (isBeyond(state.head, last.head)) put(state.head, last.head, "address_head", { n: state.head.value, last: info.headNumbers[state.layer.value][last.head] });
    if (state.several.value.some((n) => n >= info.layers.length * info.heads)) state.several.value = state.NONE;
    for (const [held, set, { tokens }] of [[state.query, state.from, info.queries], [state.key, state.to, info.keys]] as const) {
      const parts = { last: tokens.length - 1 };
      if (isBeyond(held, parts.last)) put(held, null, "address_token", { n: held.value!, ...parts });
      const [lost, here] = [set.value.filter((place) => place > parts.last), set.value.filter((place) => place <= parts.last)];
      if (lost.length) put(set, here.length ? here : state.NONE, "address_token", { n: lost.join(", "), ...parts });
    }
    const drop = <T,>(name: string, held: Signal<T>, instead: T): void => put(held, instead, "address_unread", { text: `${name}=${held.value}` });
    if (state.step.value > state.STEPS) drop("step", state.step, 0);
    if (!isStatistic(state.statistic.value)) drop("by", state.statistic, "entropy");
    remarks.value = now;
  });
}
