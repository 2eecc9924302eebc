// One selection drives every panel. It lives in the URL's hash, so that a link shows the same picture.
import { effect, signal, type Signal } from "@preact/signals";

export const MODES = ["both", "lines", "matrix"] as const;
export const PANES = ["head", "compare", "causes", "anatomy"] as const;
export const FILTERS = ["all", "aa", "ab", "ba", "bb"] as const;
export const SCALES = ["sqrt", "linear", "log"] as const;
export const REACHES = ["one", "head"] as const;
export const THEMES = ["auto", "light", "dark"] as const;
export const ORDERS = ["place", "high", "low"] as const;
export type Mode = (typeof MODES)[number];
export type Pane = (typeof PANES)[number];
export type Filter = (typeof FILTERS)[number];
export type Scale = (typeof SCALES)[number];
export type Reach = (typeof REACHES)[number];
export type Theme = (typeof THEMES)[number];
export type Order = (typeof ORDERS)[number];
/** Top row, left column and how many rows and columns are seen; null is everything. */
export type Box = { top: number; left: number; span: number } | null;

export const trace = signal(0);
export const other = signal<number | null>(null);
export const layer = signal(0);
export const head = signal(0);
/** The pinned tokens, by their place in the text. */
export const query = signal<number | null>(null);
export const key = signal<number | null>(null);
export const pane = signal<Pane>("head");
export const mode = signal<Mode>("both");
export const mass = signal(0.7);
export const filter = signal<Filter>("all");
export const special = signal(true);
export const merged = signal(false);
export const normed = signal(false);
export const scale = signal<Scale>("sqrt");
/** Where the colours end: at weight 1, the same for all heads, or at the strongest weight of this head. */
export const reach = signal<Reach>("one");
export const statistic = signal("entropy");
export const order = signal<Order>("place");
export const least = signal(0);
export const step = signal(0);
export const box = signal<Box>(null);
export const theme = signal<Theme>("auto");
export const language = signal("");

/** What the pointer or the keyboard's focus rests on: rows and columns of the picture. Never in the URL. */
export const hoverRow = signal<number | null>(null);
export const hoverColumn = signal<number | null>(null);
export const hoverHead = signal<[number, number] | null>(null);
export const dark = signal(false);
export const help = signal(false);
export const said = signal("");

interface Field<T> {
  signal: Signal<T>;
  first: T;
  read(text: string): T | undefined;
  write(value: T): string;
}

const whole = (text: string): number | undefined => (/^\d{1,6}$/.test(text) ? Number(text) : undefined);
const field = <T,>(held: Signal<T>, read: (text: string) => T | undefined, write: (value: T) => string = String): Field<T> => ({
  signal: held, first: held.peek(), read, write,
});
const among = <T extends string>(held: Signal<T>, names: readonly T[]): Field<T> =>
  field(held, (text) => names.find((name) => name === text));
const flag = (held: Signal<boolean>): Field<boolean> => field(held, (text) => text === "1", (on) => (on ? "1" : "0"));
const share = (held: Signal<number>): Field<number> =>
  field(held, (text) => { const value = Number(text); return value >= 0 && value <= 1 ? value : undefined; });

const FIELDS: Record<string, Field<never>> = {
  d: field(trace, whole),
  vs: field(other, whole),
  l: field(layer, whole),
  h: field(head, whole),
  q: field(query, whole),
  k: field(key, whole),
  pane: among(pane, PANES),
  mode: among(mode, MODES),
  mass: share(mass),
  of: among(filter, FILTERS),
  special: flag(special),
  words: flag(merged),
  normed: flag(normed),
  scale: among(scale, SCALES),
  to: among(reach, REACHES),
  by: field(statistic, (text) => (/^[a-z_]{1,24}$/.test(text) ? text : undefined)),
  order: among(order, ORDERS),
  least: share(least),
  step: field(step, whole),
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
  theme: among(theme, THEMES),
  lang: field(language, (text) => (["en", "ja", "zh"].includes(text) ? text : undefined)),
} as unknown as Record<string, Field<never>>;

/** The state as a hash, without what is at its first value. */
export function toHash(): string {
  const parts: string[] = [];
  for (const [name, { signal: held, first, write }] of Object.entries(FIELDS)) {
    const value = held.value as unknown;
    if (value !== first && value !== null) parts.push(`${name}=${encodeURIComponent(write(value as never))}`);
  }
  return parts.join("&");
}

/** Take the state from a hash; what it doesn't name goes back to its first value, what can't be read is left out. */
export function fromHash(hash: string): void {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  for (const [name, { signal: held, first, read }] of Object.entries(FIELDS)) {
    const text = given.get(name);
    (held as Signal<unknown>).value = (text === null ? undefined : read(text)) ?? first;
  }
}

/** Keep the URL and the state the same. Frames without a URL of their own keep the state in memory. */
export function followHash(): void {
  fromHash(location.hash);
  let waiting = 0;
  effect(() => {
    const hash = toHash();
    clearTimeout(waiting);
    waiting = window.setTimeout(() => {
      if (location.hash.replace(/^#/, "") === hash) return;
      try {
        history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
      } catch {
        // a frame whose address can't be changed
      }
    }, 60);
  });
  addEventListener("hashchange", () => {
    if (location.hash.replace(/^#/, "") !== toHash()) fromHash(location.hash);
  });
}
