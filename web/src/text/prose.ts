// A text as people read it: its tokens as they were written, with what stands between them.
import { isSpace, isUnspaced, joinCuts, sourceOf, type Label } from "./shown";
import type { Axis } from "../trace/trace";

export interface Piece {
  before: string;
  text: string;
}

/** Marks that would turn the words after them around. */
const TURNS = /[\u202a-\u202e\u2066-\u2069]/g;

/** A new paragraph begins on a new line; other white space is a space. */
const between = (text: string): string => (/\n\s*\n/.test(text) ? "\n" : text.replace(TURNS, "").replace(/\s+/g, " "));

/** From which side a text is read: that of its first letter. Special tokens are not part of it. */
export const direction = (labels: Label[]): "rtl" | "ltr" =>
  /^\P{L}*(?=\p{L})[\u0590-\u08ff\ufb1d-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u.test(labels.map(({ text, special }) => (special ? "" : text)).join(" ")) ? "rtl" : "ltr";

/** The words of a picture's side: from the text where the tokens' spans are known, else as the page spells tokens. */
export function prose(labels: Label[], axis: Axis): Piece[] {
  let [source, end]: [string[], number] = [[], 0];
  const pieces = labels.map((label, n) => {
    const { text, continues, special, tokens } = label;
    const here = sourceOf(axis, tokens[0]);
    if (here !== source) [source, end] = [here, 0];
    const [first, last] = [axis.spans?.[tokens[0]], axis.spans?.[tokens[tokens.length - 1]]];
    if (isSpace(label) || !first || !last || !source.length || (special && first[0] === first[1])) return { before: n === 0 || continues || isUnspaced(text) ? "" : " ", text: text.replace(TURNS, "") || text };
    const gap = (end || n === 0 ? "" : " ") + source.slice(end, first[0]).join("");
    end = last[1];
    return { before: between(n === 0 ? gap.trimStart() : gap), text: source.slice(first[0], last[1]).join("").replace(TURNS, "") || text };
  });
  joinCuts(pieces, labels);
  return pieces;
}
