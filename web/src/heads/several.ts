// Several heads of a text at once: over each other in the lines, or their mean as one picture.
import { batch, computed, effect, signal } from "@preact/signals";
import { headColour } from "../drawing/colour";
import * as state from "../state/state";
import { at, doc, headLabel, headName, headOf } from "../state/store";
import { holdAgainst } from "../state/comparing";
import { choose } from "./ranking";
import { say } from "../words";

/** The heads together; none where only one is looked at. */
export const members = computed(() => {
  const info = doc.value?.info;
  const held = info ? state.several.value.filter((n) => n < info.heads * info.layers.length) : [];
  return held.length > 1 ? held : [];
});

/** The heads whose mean the picture is, (layer, head) each; null where it is one head's. */
export const mean = computed(() => (state.blend.value === "mean" && members.value.length ? members.value.map((n): [number, number] => [headOf(doc.value!.info, n).layer, headOf(doc.value!.info, n).head]) : null));

/** The heads whose lines lie over each other. */
export const overlaid = computed(() => (state.blend.value === "over" ? members.value : []));

/** True while each word and head that is picked joins those that were, without Shift or Ctrl. */
export const adding = signal(false);

export function toggleAdding(): void {
  state.flip(adding);
  state.hoverHead.value = state.hoverRow.value = state.hoverColumn.value = null;
}

/** Ctrl-click: add a head to those that are looked at together, or take it out. */
export function gather(n: number): void {
  const info = doc.value!.info;
  const here = at.peek().n;
  const now = state.several.value.length ? state.several.value : [here];
  const next = now.includes(n) ? now.filter((other) => other !== n) : [...now, n].sort((a, b) => a - b);
  batch(() => {
    if (next.length && !next.includes(here)) choose(info, next[0]);
    state.several.value = next.length > 1 ? next : state.NONE;
  });
}

/** A click on a head: looks at it; with Ctrl adds it, with Shift puts it into slot B; Compare adds to slot B. */
export function pick(event: Partial<MouseEvent>, n: number): void {
  if (event.shiftKey || (adding.value && state.pane.value === "compare")) holdAgainst(n);
  else if (event.ctrlKey || event.metaKey || adding.value) gather(n);
  else choose(doc.value!.info, n);
}

/** All heads of the selected layer, as their mean. */
export function takeLayer(): void {
  const { heads } = doc.value!.info;
  const { layer } = at.value;
  batch(() => {
    state.several.value = Array.from({ length: heads }, (_, head) => layer * heads + head);
    state.blend.value = "mean";
  });
}

/** The name of what is drawn. */
export function title(): string {
  const info = doc.value!.info;
  if (!mean.value) return say("layer_head", headName(info, at.value));
  if (mean.value.length === info.heads && mean.value.every(([layer]) => layer === at.value.layer)) return say("mean_layer", { l: info.layerNumbers[at.value.layer] });
  const names = members.value.map((n) => headLabel(info, n));
  return names.length > 4 ? say("mean_heads", { n: names.length }) : say("mean_of", { heads: names.join(", ") });
}

/** A head's colour among those drawn together: hues as far apart as they can be. */
export const memberColour = (n: number): string => headColour(n, Math.max(2, members.value.length), state.dark.value);

/** Looking at another head lets go of the others. */
export function followSeveral(): void {
  effect(() => {
    if (doc.value && state.several.value.length && !state.several.value.includes(at.value.n)) state.several.value = state.NONE;
  });
}
