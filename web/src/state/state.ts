// The selection, which all panels share. It is kept in the URL's hash, so that a link shows the same picture.
import { signal, type Signal } from "@preact/signals";
import { among, APPEARANCE, field, flag, share, text, whole, wholes, type Fields } from "./hash";

export { dark, language, theme, THEMES } from "./appearance";

export const MODES = ["both", "lines", "matrix", "text"] as const;
export const PANES = ["head", "follow", "compare", "causes", "anatomy"] as const;
export const FILTERS = ["all", "aa", "ab", "ba", "bb"] as const;
export const SCALES = ["sqrt", "linear", "log"] as const;
/** The steps of a cell, from q and k to what the head writes. */
export const STEPS = 7;
const REACHES = ["one", "head"] as const;
export const ORDERS = ["place", "high", "low"] as const;
export const DIRECTIONS = ["from", "to"] as const;
export const BLENDS = ["over", "mean"] as const;
export const FACES = ["pictures", "values"] as const;
/** Ways to change a run: of each head in turn, of what was chosen, or of nothing, for attributions. */
export const WAYS = ["zero", "mean", "patch", "edge", "these", "cut", "groups", "decompx"] as const;
export type Way = (typeof WAYS)[number];
export const isOfHeads = (name: Way): boolean => WAYS.indexOf(name) < 4;
export const isOfTokens = (name: Way): boolean => name === "decompx";
export type Face = (typeof FACES)[number];
export type Direction = (typeof DIRECTIONS)[number];
type Blend = (typeof BLENDS)[number];
type Mode = (typeof MODES)[number];
export type Pane = (typeof PANES)[number];
export type Filter = (typeof FILTERS)[number];
export type Scale = (typeof SCALES)[number];
type Reach = (typeof REACHES)[number];
export type Order = (typeof ORDERS)[number];
/** Top row, left column, and number of visible rows and columns; null for the whole matrix. */
export type Box = { top: number; left: number; span: number } | null;

export const trace = signal(0);
export const other = signal<number | null>(null);
export const layer = signal(0);
export const head = signal(0);
/** The pinned tokens, by their positions in the text. */
export const query = signal<number | null>(null);
export const key = signal<number | null>(null);
/** Whether the page pinned the token of a side itself, for a finding: the reader's first click on it then keeps it. */
export const found = { row: false, column: false };
/** Chosen sets of tokens, by their places, for the weight between them. */
export const NONE: readonly number[] = [];
export const from = signal(NONE);
export const to = signal(NONE);
/** B's head, by its place in B's trace; null for the numbers of A's. */
export const otherLayer = signal<number | null>(null);
export const otherHead = signal<number | null>(null);
/** Heads (layer * heads + head) that are drawn over each other, or averaged; the selected one is among them. */
export const several = signal(NONE);
export const blend = signal<Blend>("over");
/** Ink in the text: what the chosen words look at, or which words look at them. */
export const direction = signal<Direction>("from");
/** What stands for each head in the grid. */
export const face = signal<Face>("pictures");
export const pane = signal<Pane>("head");
export const mode = signal<Mode>("both");
export const mass = signal(0.7);
export const filter = signal<Filter>("all");
export const special = signal(true);
export const merged = signal(false);
export const normed = signal(false);
export const scale = signal<Scale>("sqrt");
/** Upper end of the colours: weight 1, the same for all heads, or the strongest weight of this head. */
export const reach = signal<Reach>("one");
export const statistic = signal("entropy");
export const order = signal<Order>("place");
export const least = signal(0);
export const step = signal(0);
/** True if the steps of the cell take the place of the picture. */
export const chain = signal(false);
/** True if a phone, which shows one thing at a time, shows the heads. */
export const heads = signal(false);
export const box = signal<Box>(null);

/** On or off, whichever it is not. */
export const flip = (target: Signal<boolean>): void => { target.value = !target.value; };

/** Other words are shown: the matrix is seen whole again. */
export function toggle(target: Signal<boolean>): void {
  flip(target);
  box.value = null;
}

/** How a run is changed, the run in view, and the group in it. */
export const way = signal<Way>("zero");
export const run = signal("");
export const group = signal(0);

/** The sentence that a page with a model opens on; empty unless the reader keeps it in the address. */
export const typed = signal("");

/** Row and column of the picture under the pointer or the keyboard's focus. Never in the URL. */
export const hoverRow = signal<number | null>(null);
export const hoverColumn = signal<number | null>(null);
export const hoverHead = signal<number | null>(null);
export const help = signal(false);
export const sharing = signal(false);
/** True while a phone's header shows all that it has. */
export const unfolded = signal(false);
export const status = signal("");

/** The part of the state that is kept in the URL. */
export const FIELDS = {
  d: field(trace, whole),
  vs: field(other, whole),
  lb: field(otherLayer, whole),
  hb: field(otherHead, whole),
  l: field(layer, whole),
  h: field(head, whole),
  q: field(query, whole),
  k: field(key, whole),
  set: wholes(from, NONE),
  on: wholes(to, NONE),
  heads: wholes(several, NONE),
  blend: among(blend, BLENDS),
  dir: among(direction, DIRECTIONS),
  face: among(face, FACES),
  pane: among(pane, PANES),
  mode: among(mode, MODES),
  mass: share(mass),
  of: among(filter, FILTERS),
  special: flag(special),
  words: flag(merged),
  normed: flag(normed),
  scale: among(scale, SCALES),
  to: among(reach, REACHES),
  by: field(statistic, (text) => (/^(?!gap$)[a-z_]{1,24}$/.test(text) ? text : undefined)),
  order: among(order, ORDERS),
  least: share(least),
  way: among(way, WAYS),
  run: field(run, (text) => (/^[\w-]{1,24}$/.test(text) ? text : undefined)),
  g: field(group, whole),
  step: field(step, whole),
  chain: flag(chain),
  all: flag(heads),
  text: text(typed, 2000),
  box: field<Box>(
    box,
    (text) => {
      const parts = text.split(".").map(Number);
      return parts.length === 3 && parts.every((part) => Number.isFinite(part) && part >= 0) && parts[2] > 0
        ? { top: parts[0], left: parts[1], span: parts[2] }
        : undefined;
    },
    (value) => (value ? [value.top, value.left, value.span].map(Math.round).join(".") : ""),
  ),
  ...APPEARANCE,
} as unknown as Fields;

/** Fields that change as a pointer moves: no step that Back undoes. */
export const FLOWING: readonly string[] = ["mass", "least", "box"];
