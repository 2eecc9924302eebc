// Where a page begins: on a finding where its address says nothing, else where the address says, as far as it can.
import { batch } from "@preact/signals";
import { placeOf } from "./comparing";
import * as state from "./state";
import type { Doc } from "./store";
import { say } from "./words";
import type { TraceInfo } from "./trace/trace";

/** Texts above this many tokens open as prose: lines would be a tangle. */
const TANGLE = 64;

export function openOnFinding({ info }: Doc): void {
  batch(() => {
    if (Math.max(info.queries.tokens.length, info.keys.tokens.length) > TANGLE) state.mode.value = "text";
    if (!info.opening) return;
    goTo(info, info.opening);
    state.statistic.value = "weight";
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
  });
}

/** What an address names and the trace lacks is corrected in the address, and said. */
export function correct({ info }: Doc): void {
  const remarks: string[] = [];
  batch(() => {
    const last = { layer: info.layers.length - 1, head: info.heads - 1 };
    if (state.layer.value > last.layer) {
      remarks.push(say("address_layer", { n: state.layer.value, last: info.layerNumbers[last.layer] }));
      state.layer.value = last.layer;
    }
    if (state.head.value > last.head) {
      remarks.push(say("address_head", { n: state.head.value, last: info.headNumbers[state.layer.value][last.head] }));
      state.head.value = last.head;
    }
    for (const [held, { tokens }] of [[state.query, info.queries], [state.key, info.keys]] as const) {
      if (held.value === null || held.value < tokens.length) continue;
      remarks.push(say("address_token", { n: held.value, last: tokens.length - 1 }));
      held.value = null;
    }
    if (state.several.value.some((n) => n >= info.layers.length * info.heads)) state.several.value = state.NONE;
    for (const [held, { tokens }] of [[state.from, info.queries], [state.to, info.keys]] as const) {
      if (held.value.some((place) => place >= tokens.length)) held.value = held.value.filter((place) => place < tokens.length);
      if (!held.value.length) held.value = state.NONE;
    }
    if (remarks.length) state.status.value = remarks.join(" ");
  });
}
