// Where a page begins: on a finding where its address says nothing, else where the address says, as far as it can.
import { batch, effect, signal } from "@preact/signals";
import { isStatistic } from "../heads/catalog";
import { placeOf } from "./comparing";
import { TANGLE } from "../text/sentence";
import * as state from "./state";
import { steps, unread } from "./steps";
import { doc, docs, type Doc } from "./store";
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
  // tokens of a segment that another text has, and this one lacks
  effect(() => {
    if (state.filter.value === "all" || doc.value?.info.queries.segments.includes(1) !== false) return;
    unread.value = [...unread.peek(), `of=${state.filter.value}`];
    state.filter.value = "all";
  });
}

/** What an address names and the page lacks is corrected in the address, and said. */
export function correct(): void {
  const now: { word: Word; parts: Parts }[] = unread.value.map((text) => ({ word: "address_unread", parts: { text } }));
  batch(() => {
    for (const held of [state.trace, state.other]) {
      if (held.value === null || held.value < docs.value.length) continue;
      now.push({ word: "address_trace", parts: { n: held.value, last: docs.value.length - 1 } });
      held.value = held === state.trace ? 0 : null;
    }
    const { info } = doc.value!;
    const last = { layer: info.layers.length - 1, head: info.heads - 1 };
    if (state.layer.value > last.layer) {
      now.push({ word: "address_layer", parts: { n: state.layer.value, last: info.layerNumbers[last.layer] } });
      state.layer.value = last.layer;
    }
    if (state.head.value > last.head) {
      now.push({ word: "address_head", parts: { n: state.head.value, last: info.headNumbers[state.layer.value][last.head] } });
      state.head.value = last.head;
    }
    for (const [held, { tokens }] of [[state.query, info.queries], [state.key, info.keys]] as const) {
      if (held.value === null || held.value < tokens.length) continue;
      now.push({ word: "address_token", parts: { n: held.value, last: tokens.length - 1 } });
      held.value = null;
    }
    if (state.several.value.some((n) => n >= info.layers.length * info.heads)) state.several.value = state.NONE;
    for (const [held, { tokens }] of [[state.from, info.queries], [state.to, info.keys]] as const) {
      const lost = held.value.filter((place) => place >= tokens.length);
      if (!lost.length) continue;
      now.push({ word: "address_token", parts: { n: lost.join(", "), last: tokens.length - 1 } });
      held.value = held.value.length > lost.length ? held.value.filter((place) => place < tokens.length) : state.NONE;
    }
    if (state.step.value > state.STEPS) {
      now.push({ word: "address_unread", parts: { text: `step=${state.step.value}` } });
      state.step.value = 0;
    }
    if (state.pane.value === "follow" && !info.followed) {
      now.push({ word: "address_unread", parts: { text: "pane=follow" } });
      state.pane.value = "head";
    }
    if (!isStatistic(state.statistic.value)) {
      now.push({ word: "address_unread", parts: { text: `by=${state.statistic.value}` } });
      state.statistic.value = "entropy";
    }
    remarks.value = now;
  });
}
