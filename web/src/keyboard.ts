// Keyboard control of the whole page.
import * as state from "./state/state";
import { choose, clearSets, labelsOf, sides, type Side } from "./heads/asking";
import { adding, pick, toggleAdding } from "./heads/several";
import { at, column, doc, headOf, lookAt, panes, row } from "./state/store";
import { goToNext } from "./heads/ranking";
import { openHead, walk } from "./panels/follow";
import { find } from "./panels/headpane";
import { nextStep } from "./panels/cell";
import { zooming } from "./panels/map";
import { saving } from "./panels/save";
import { toolsOpen } from "./panels/tools";
import { gridTableOpen, tableOpen } from "./panels/table";
import { cutEdge, toggleHead, toggleToken } from "./panels/causes";

/** What Enter adds, while keys add: the word or head that they moved to last. */
let add: (() => void) | null = null;

function move(side: Side, by: number): void {
  const labels = labelsOf(side);
  const { hover, pinned, held } = sides(side);
  const place = adding.value ? hover.value ?? pinned.value : pinned.value;
  const next = place === null ? (by > 0 ? 0 : labels.length - 1) : Math.max(0, Math.min(labels.length - 1, place + by));
  if (!labels[next]) return;
  add = () => choose(side, labels[next].tokens);
  if (adding.value) hover.value = next;
  else held.value = labels[next].tokens[0];
}

function step(down: number, right: number): void {
  const info = doc.value?.info;
  if (!info) return;
  const from = (adding.value ? state.hoverHead.value : null) ?? at.value.n;
  const inside = (place: number, all: number): number => Math.max(0, Math.min(all - 1, place));
  const { layer, head } = headOf(info, from);
  const next = inside(layer + down, info.layers.length) * info.heads + inside(head + right, info.heads);
  add = () => pick({}, next);
  if (adding.value) state.hoverHead.value = next;
  else add();
}

/** Esc lets go of one thing at a time, the last first. */
function letGo(): void {
  const open = [state.help, state.sharing, saving, tableOpen, gridTableOpen].find(({ value }) => value);
  if (open) open.value = false;
  else if (state.step.value) state.step.value = 0;
  else if (state.chain.value) state.chain.value = false;
  else if (adding.value) toggleAdding();
  else if (state.from.value.length || state.to.value.length) clearSets();
  else if (state.key.value !== null) state.key.value = null;
  else if (state.query.value !== null) state.query.value = null;
  else if (state.box.value) state.box.value = null;
  else if (state.pane.value !== "head") state.pane.value = "head";
}

const follows = (): boolean => state.pane.value === "follow";
const arrow = (down: number, across: number) => (): void => (follows() ? walk : step)(down, across);

const KEYS: Record<string, () => void> = {
  ArrowLeft: arrow(0, -1),
  ArrowRight: arrow(0, 1),
  ArrowUp: arrow(-1, 0),
  ArrowDown: arrow(1, 0),
  j: () => move("row", 1),
  k: () => move("row", -1),
  J: () => move("column", 1),
  K: () => move("column", -1),
  Enter: () => { if (follows()) openHead(); else if (adding.value) add?.(); else if (state.pane.value === "head" && row.value !== null && column.value !== null) nextStep(); },
  a: () => { add = null; toggleAdding(); },
  "/": find,
  Escape: letGo,
  ...Object.fromEntries(state.MODES.map((name, n) => ["blmp"[n], () => { state.mode.value = name; }])),
  "+": () => zooming.by(0.6),
  "=": () => zooming.by(0.6),
  "-": () => zooming.by(1 / 0.6),
  "0": () => { state.box.value = null; },
  s: () => state.toggle(state.special),
  w: () => state.toggle(state.merged),
  n: () => { if (doc.value?.info.hasNorms) state.flip(state.normed); },
  e: () => goToNext(1),
  E: () => goToNext(-1),
  f: () => document.querySelector<HTMLElement>(".finding")?.focus(),
  o: () => state.flip(toolsOpen),
  ...Object.fromEntries(state.PANES.map((name, n) => [n + 1, () => { if (panes.value.includes(name)) state.pane.value = name; }])),
  x: toggleHead,
  X: cutEdge,
  M: toggleToken,
  t: () => { state.pane.value = "head"; state.flip(tableOpen); },
  T: () => state.flip(gridTableOpen),
  "?": () => state.flip(state.help),
  S: () => { state.sharing.value = doc.value !== null; },
  "[": () => lookAt(state.trace.value - 1),
  "]": () => lookAt(state.trace.value + 1),
};

export function listen(): void {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const element = event.target as HTMLElement;
    if (element.matches("input:not([type=checkbox]), select, textarea") && event.key !== "Escape") return;
    if (element.matches("a, button, summary") && (event.key === "Enter" || event.key === " ")) return;
    const action = KEYS[event.key];
    // behind a dialog nothing changes
    if (!action || ((state.help.value || state.sharing.value) && action !== letGo)) return;
    event.preventDefault();
    action();
  });
}
