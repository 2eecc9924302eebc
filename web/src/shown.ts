// The tokens on the screen: filtered by segment, without special tokens, merged into words.
import type { Groups, View } from "./trace/cells";
import type { Axis, TraceInfo } from "./trace/trace";
import type { Filter } from "./state";

export interface Label {
  text: string;
  /** True if it continues a word. */
  continues: boolean;
  special: boolean;
  segment: number;
  title: string;
  tokens: number[];
  /** Its place, where the same word stands elsewhere in the text as well. */
  repeats: number | null;
  /** In a comparison: not the same in both texts; missing in one. */
  differs?: boolean;
  gap?: boolean;
}

export interface Shown {
  view: View;
  rows: Label[];
  columns: Label[];
  /** Token's position -> its row or column; -1 if hidden. */
  rowOf: Int32Array;
  columnOf: Int32Array;
  renormalised: boolean;
  /** True if rows show only a part of their mass: keys of the other text are hidden without renormalising. */
  partial: boolean;
}

/** A label, with a dimmed dot before a continuation. */
export const marked = (label: Label): string => (label.continues ? `·${label.text}` : label.text);

/** The same with its place where the word is repeated, as small digits. */
export const placed = (label: Label): string =>
  label.repeats === null ? marked(label) : marked(label) + String(label.repeats).replace(/\d/g, (digit) => String.fromCodePoint(0x2080 + Number(digit)));

/** Tokens as a reader writes them: the pieces of a word joined. */
export function readable(axis: Axis, most = Infinity, special = true): string {
  let text = "";
  axis.labels.slice(0, most).forEach((label, at) => {
    if (!special && axis.special[at]) return;
    const bare = label.replace(/^·/u, "");
    text += text && bare === label ? ` ${bare}` : bare;
  });
  return text;
}

/** A token's whole word, as the page spells its pieces. */
export function wordAt(axis: Axis, place: number): string {
  const word = axis.words[place];
  let [from, to] = [place, place + 1];
  if (word !== null) {
    while (from > 0 && axis.words[from - 1] === word) from--;
    while (to < axis.words.length && axis.words[to] === word) to++;
  }
  return axis.labels.slice(from, to).map((label) => label.replace(/^·/u, "")).join("");
}

interface Choice {
  segment: number | null;
  special: boolean;
  merged: boolean;
}

/** The text of an unknown token. */
function source(axis: Axis, at: number, token: string, texts: (string | null)[]): string {
  const span = axis.spans?.[at];
  if (!span || axis.special[at]) return "";
  const second = axis.special.slice(1, at).some(Boolean) && texts[1] !== null;
  // spans count code points, as Python does
  const source = [...(texts[second ? 1 : 0] ?? "")].slice(span[0], span[1]).join("");
  return source && source !== token ? ` ${source}` : "";
}

function join(axis: Axis, { segment, special, merged }: Choice, texts: (string | null)[]): { labels: Label[]; groups: Groups; of: Int32Array } {
  const labels: Label[] = [];
  const members: number[] = [];
  const starts: number[] = [0];
  const of = new Int32Array(axis.tokens.length).fill(-1);
  axis.tokens.forEach((token, at) => {
    if (!special && axis.special[at]) return;
    if (segment !== null && axis.segments[at] !== segment) return;
    const word = axis.words[at];
    const last = labels[labels.length - 1];
    const goesOn = at > 0 && word !== null && axis.words[at - 1] === word;
    const text = axis.labels[at];
    const bare = goesOn ? text.replace(/^·/u, "") : text;
    members.push(at);
    if (merged && goesOn && last && last.tokens[last.tokens.length - 1] === at - 1) {
      last.text += bare;
      last.tokens.push(at);
      last.title += ` + ${token}`;
      starts[starts.length - 1]++;
    } else {
      labels.push({
        text: bare, continues: goesOn && !merged, special: axis.special[at], segment: axis.segments[at], tokens: [at], repeats: null,
        title: `${at}: ${token} (${axis.ids[at]})${source(axis, at, token, texts)}`,
      });
      starts.push(members.length);
    }
    of[at] = labels.length - 1;
  });
  const seen = new Map<string, number>();
  for (const { text, special: apart } of labels) if (!apart) seen.set(text, (seen.get(text) ?? 0) + 1);
  for (const label of labels) if (label.tokens.length > 1) label.title = `${label.text} · ${label.title}`;
  for (const label of labels) if ((seen.get(label.text) ?? 0) > 1 && !label.special) label.repeats = label.tokens[0];
  return { labels, groups: { starts: Int32Array.from(starts), members: Int32Array.from(members) }, of };
}

export function makeShown(info: TraceInfo, filter: Filter, special: boolean, merged: boolean): Shown {
  const segment = (side: 0 | 1): number | null => (filter === "all" ? null : filter[side] === "a" ? 0 : 1);
  const texts = [info.text, info.pair];
  const rows = join(info.queries, { segment: segment(0), special, merged }, texts);
  const columns = join(info.keys, { segment: segment(1), special, merged }, texts);
  if (filter !== "all" && !(rows.labels.length && columns.labels.length)) return makeShown(info, "all", special, merged);
  const renormalised = !special && info.keys.special.some(Boolean);
  return {
    view: { rows: rows.groups, columns: columns.groups, renormalise: renormalised },
    rows: rows.labels,
    columns: columns.labels,
    rowOf: rows.of,
    columnOf: columns.of,
    renormalised,
    partial: filter !== "all" && !renormalised && columns.groups.members.length < info.keys.tokens.length,
  };
}
