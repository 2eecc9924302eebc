// The tokens on the screen: filtered by segment, without special tokens, merged into words.
import type { Groups, View } from "../trace/cells";
import type { Axis, TraceInfo } from "../trace/trace";
import type { Filter } from "../state/state";
import { isolated, leftToRight } from "../words/speech";

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
  /** In a comparison: not the same in both texts. */
  differs?: boolean;
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

/** True for a word that has a token of this set. */
export const isIn = (label: Label | undefined, set: readonly number[]): boolean => label?.tokens.some((token) => set.includes(token)) ?? false;

/** A token's label without the dot of a continuation. */
export const undotted = (label: string): string => label.replace(/^·/u, "");

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
    const bare = undotted(label);
    text += text && bare === label ? ` ${bare}` : bare;
  });
  return text;
}

/** Texts by code points, in which spans count, as Python does. */
const points = new WeakMap<Axis, string[][]>();

/** The text of a pair that a token is of, by code points. */
export function sourceOf(axis: Axis, place: number): string[] {
  if (!points.has(axis)) points.set(axis, axis.texts.map((text) => [...(text ?? "")]));
  const seam = axis.texts[1] === null ? -1 : axis.special.indexOf(true, 1);
  return points.get(axis)![Number(seam > 0 && seam < place)];
}

/** What the writer wrote for neighbouring tokens; "" where that is not known. */
function written(axis: Axis, from: number, to = from): string {
  const [first, last] = [axis.spans?.[from], axis.spans?.[to]];
  return first && last && !axis.special[from] ? sourceOf(axis, from).slice(first[0], last[1]).join("") : "";
}

/** Scripts without spaces between words. */
const UNSPACED = /[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u{20000}-\u{3ffff}]/u;

/** True for a word of such a script, or its marks. */
export const isUnspaced = (text: string): boolean => UNSPACED.test(text) || /^[\u3001-\u303f\uff01-\uff65]/.test(text);

/** True for a word that may be written from above: Chinese and Japanese, with their marks. */
export const isUpright = (text: string): boolean => isUnspaced(text) && !/[\u0e00-\u17ff]/.test(text);

/** The first and the last token of a token's word; itself, where a vocabulary calls all between two spaces a word (results/tokens.py). */
export function wordOf(axis: Axis, place: number, whole = false): [number, number] {
  let [from, to] = [place, place];
  if (axis.words[place] == null) return [from, to]; // of no word, or of another text
  while (from > 0 && axis.words[from - 1] === axis.words[place]) from--;
  while (axis.words[to + 1] === axis.words[place]) to++;
  const split = whole || !UNSPACED.test(axis.labels.slice(from, to + 1).join()) || axis.tokens.some((token) => token.startsWith("##"));
  return split ? [from, to] : [place, place];
}

/** A token's word as the writer spelled it, else as the page spells its pieces. */
export function wordAt(axis: Axis, place: number, whole = false): string {
  const [from, to] = wordOf(axis, place, whole);
  return written(axis, from, to).trim() || axis.labels.slice(from, to + 1).map((_, n) => spelled(axis, from + n)).join("");
}

/** A token's own letters, with the capitals that a model may not have. */
export function spelled(axis: Axis, place: number): string {
  const [label, source] = [axis.labels[place].replace(/^·(?=.)/u, ""), written(axis, place)];
  return source.toLowerCase() === label ? source : label;
}

/** SentencePiece's mark of a space, where a token is nothing else. */
export const isSpace = ({ text }: Label): boolean => /^▁+$/.test(text);

/** True for what is drawn quietly: no word of the writer's. */
export const isQuiet = (label: Label): boolean => label.special || isSpace(label);

/** Arabic letters that join to the one after them, before marks; and letters that join to the one before. */
const JOINING = /(?![\u0621-\u0625\u0627\u0629\u062f-\u0632\u0648\u0671-\u0677\u0688-\u0699\u06c0\u06c3-\u06cb\u06cd\u06cf\u06d2-\u06d5])(?=\p{scx=Arab})\p{L}\p{M}*$/u;
const JOINED = /^(?=\p{scx=Arab})(?!\u0621)\p{L}/u;

/** Where another text begins. */
export const seams = (labels: readonly Label[]): number[] => labels.flatMap((label, n) => (n && label.segment !== labels[n - 1].segment ? [n] : []));

/** Letters that a cut parts keep the forms that they have together, by joiners; marks stand with the letter that they belong to. */
export function joinCuts(texts: { text: string }[], labels: readonly Label[]): void {
  texts.forEach((now, n) => {
    const before = texts[n - 1];
    if (!labels[n].continues || !before) return;
    now.text = now.text.replace(/^\p{M}+(?=\P{M})/u, (marks) => {
      before.text += marks;
      return "";
    });
    // a virama: the consonant before it has the half form that it has in the word
    if (/[\u094d\u09cd\u0acd]$/.test(before.text)) before.text += "\u200d";
    if (!JOINING.test(before.text) || !JOINED.test(now.text)) return;
    before.text += "\u200d";
    now.text = `\u200d${now.text}`;
  });
}

interface Choice {
  segment: number | null;
  special: boolean;
  merged: boolean;
}

function join(axis: Axis, { segment, special, merged }: Choice): { labels: Label[]; groups: Groups; of: Int32Array } {
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
    const source = written(axis, at);
    const text = spelled(axis, at);
    members.push(at);
    if (merged && goesOn && last && last.tokens[last.tokens.length - 1] === at - 1) {
      last.text += text;
      last.tokens.push(at);
      last.title += ` + ${isolated(token)}`;
      starts[starts.length - 1]++;
    } else {
      labels.push({
        text, continues: goesOn && !merged && !isUnspaced(text), special: axis.special[at], segment: axis.segments[at], tokens: [at], repeats: null,
        title: `${at}: ${isolated(token)} (${axis.ids[at]})${source && source !== token ? ` ${isolated(source)}` : ""}`,
      });
      starts.push(members.length);
    }
    of[at] = labels.length - 1;
  });
  const seen = new Map<string, number>();
  const key = ({ text }: Label): string => text.toLowerCase();
  for (const label of labels) if (!label.special) seen.set(key(label), (seen.get(key(label)) ?? 0) + 1);
  for (const label of labels) label.title = leftToRight((label.tokens.length > 1 ? `${isolated(label.text)} · ` : "") + label.title);
  for (const label of labels) if ((seen.get(key(label)) ?? 0) > 1 && !label.special && !isSpace(label)) label.repeats = label.tokens[0];
  joinCuts(labels, labels);
  return { labels, groups: { starts: Int32Array.from(starts), members: Int32Array.from(members) }, of };
}

/** Some groups of tokens, each of several of the old ones. */
export function regroup({ starts, members }: Groups, groups: number[][]): Groups {
  const all = groups.map((places) => places.flatMap((n) => Array.from(members.subarray(starts[n], starts[n + 1]))));
  let end = 0;
  return { starts: Int32Array.from([0, ...all.map(({ length }) => (end += length))]), members: Int32Array.from(all.flat()) };
}

export function makeShown(info: TraceInfo, filter: Filter, special: boolean, merged: boolean): Shown {
  const segment = (side: 0 | 1): number | null => (filter === "all" ? null : filter[side] === "a" ? 0 : 1);
  const rows = join(info.queries, { segment: segment(0), special, merged });
  const columns = join(info.keys, { segment: segment(1), special, merged });
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
