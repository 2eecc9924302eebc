// A question of cause and effect, a run that answers it, and both in words.
import { number, say, type Word } from "../words";
import type { Language } from "../words/speech";

/** A change of the text's run and the output that is read, as the server takes them (headscope/page/questions.py). */
export interface Ask {
  kind: "change" | "edge" | "heads" | "groups" | "tokens";
  method: string;
  target: (string | number)[] | null;
  ablate: [number, number][];
  mask: number[];
  replace: [number, string][];
  /** Layer, head, query, key; query and key alone where each head is changed in turn. */
  edge: number[] | null;
  patch_from: string | null;
}

/** The model's prediction at one token or for the text, likeliest first. */
export interface Outcome {
  what: string;
  place: number | null;
  token: string | null;
  top: { label: string; share: number }[];
}

export interface Target {
  kind: "word" | "class" | "score" | "token" | "embedding" | "similarity";
  label: string;
  row: number | null;
  unit: "logit" | "share" | "cosine";
  aside: "probability" | "cosine" | "";
}

/** The 5th, 50th and 95th percentile of what random sets of heads do, and how many of them are below the group. */
type Spread = [number, number, number, number];

/** Heads that were silenced together (headscope/runs/groups.py). */
export interface Group {
  kind: "first" | "layer" | "label";
  /** The token, the layer's number, the label. */
  name: string | number | Record<Language, string>;
  /** Layer * heads + head, in the model. */
  heads: number[];
  value: number;
  /** 1 - cosine of each token. */
  turn: number[];
  /** How far the text's vector moves, over its length; and the sum of what each head does alone. */
  moved: [number, number];
  drawn: Spread;
  matched: Spread | null;
}

/** Numbers of every head; of a changed run; of every token. */
export interface Result {
  change: number[][];
  /** The probability or cosine with each head changed, where the output has one (`Target.aside`). */
  aside?: number[][] | null;
  base: number;
  before?: number;
  after?: number;
  before_aside?: number;
  after_aside?: number;
  moved: number | null;
  shift: number[] | null;
  was: Outcome[];
  now: Outcome[];
  scores: number[];
  total: number;
  rest: number;
  gap: number;
  groups?: Group[];
  draws?: number;
  /** The first token. */
  first?: string;
  /** Numbers of heads, with the output without as many; and beside these a spread. */
  curve?: [number, number][];
  random?: [number, ...Spread][];
}

/** A run as the server keeps it (headscope/page/runs.py). */
export interface Run {
  id: string;
  /** The trace of the unchanged text. */
  base: string;
  text: string;
  ask: Ask;
  /** Labels of the tokens that the change speaks of, by place. */
  names: Record<string, string>;
  target: Target | null;
  result: Result;
  /** The changed run's own trace, if the server keeps it. */
  trace: string | null;
}

/** True if a head is among these. */
export const hasHead = (heads: Ask["ablate"], layer: number, head: number): boolean => heads.some(([l, h]) => l === layer && h === head);

/** These heads with one more, or without it where it is among them. */
export const toggled = (heads: Ask["ablate"], layer: number, head: number): Ask["ablate"] =>
  hasHead(heads, layer, head) ? heads.filter(([l, h]) => l !== layer || h !== head) : [...heads, [layer, head]];

export const NOTHING: Ask = { kind: "heads", method: "zero", target: null, ablate: [], mask: [], replace: [], edge: null, patch_from: null };

/** Equal for equal questions. */
export const askKey = (ask: Ask): string =>
  JSON.stringify([ask.kind, ask.method, ask.target, [...ask.ablate].sort(), ask.mask, ask.replace, ask.edge, ask.patch_from]);

/** A change in words: what was done, and to what. */
export function changeName({ ask, names }: Pick<Run, "ask" | "names">): string {
  const name = (place: number): string => (names[place] ?? String(place)).replace(/^·/u, "");
  const edge = ask.edge && { token: name(ask.edge.at(-2)!), text: name(ask.edge.at(-1)!) };
  if (ask.kind === "tokens") return say("run_tokens", { how: say(`do_${ask.method}` as Word) });
  if (ask.kind === "groups") return say("do_groups");
  if (ask.kind === "edge") return say("run_cut", { head: ask.edge!.slice(0, 2).join("."), ...edge! });
  if (ask.kind === "heads") {
    const how = edge ? say("run_edge", edge) : ask.patch_from !== null ? say("run_patch", { text: ask.patch_from }) : say(`do_${ask.method}` as Word);
    return say("run_heads", { how });
  }
  return [
    ask.ablate.length ? say("run_silenced", { heads: ask.ablate.map((head) => head.join(".")).join(" ") }) : "",
    ...ask.mask.map((place) => say("run_masked", { token: name(place) })),
    ...ask.replace.map(([place, text]) => say("run_replaced", { token: name(place), text })),
  ].filter(Boolean).join(" · ");
}

/** The output that was read, in words. */
export const targetName = ({ kind, label, row }: Target): string => say(`t_${kind}`, { token: label, text: label, n: row ?? "" });

/** The number that groups are read by, in words. */
export const numberName = (read: Target): string => (read.aside ? say(`aside_${read.aside}`) : targetName(read));

/** A change with its sign. */
export const signed = (value: number): string => `${value < 0 ? "−" : "+"}${number(Math.abs(value))}`;
