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
        text: bare, continues: goesOn && !merged, special: axis.special[at], segment: axis.segments[at], tokens: [at],
        title: `${at}: ${token} (${axis.ids[at]})${source(axis, at, token, texts)}`,
      });
      starts.push(members.length);
    }
    of[at] = labels.length - 1;
  });
  return { labels, groups: { starts: Int32Array.from(starts), members: Int32Array.from(members) }, of };
}

export function makeShown(info: TraceInfo, filter: Filter, special: boolean, merged: boolean): Shown {
  const segment = (side: 0 | 1): number | null => (filter === "all" ? null : filter[side] === "a" ? 0 : 1);
  const texts = [info.text, info.pair];
  const rows = join(info.queries, { segment: segment(0), special, merged }, texts);
  const columns = join(info.keys, { segment: segment(1), special, merged }, texts);
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
