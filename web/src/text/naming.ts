// Short names of traces: what differs between them, never the words that all begin with.
import { docs, type Doc } from "../state/store";
import { isWord, say } from "../words";

/** Words on either side of the difference that are kept. */
const CONTEXT = 2;
const PIECES = /\s*(?:[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}]|[^\s\p{scx=Han}\p{scx=Hira}\p{scx=Kana}]+)/gu;

const same = (a: string[], b: string[], back: boolean): number => {
  let n = 0;
  while (n < Math.min(a.length, b.length) && a.at(back ? -1 - n : n)!.trim() === b.at(back ? -1 - n : n)!.trim()) n++;
  return n;
};

/** Each text without what it shares with the text that begins most like it; equal ones are numbered. */
export function distinct(texts: readonly string[]): string[] {
  const split = texts.map((text) => text.match(PIECES) ?? [""]);
  return split.map((pieces, n) => {
    const others = split.filter((_, m) => m !== n && texts[m] !== texts[n]);
    const before = Math.max(0, ...others.map((other) => same(pieces, other, false)));
    const alike = others.filter((other) => same(pieces, other, false) === before);
    const after = before ? Math.min(pieces.length - before, ...alike.map((other) => same(pieces, other, true))) : 0;
    const [from, to] = [Math.max(0, before - CONTEXT), Math.min(pieces.length, pieces.length - after + CONTEXT)];
    const equal = texts.slice(0, n).filter((text) => text === texts[n]).length;
    return `${equal ? `(${equal + 1}) ` : ""}${from ? "… " : ""}${pieces.slice(from, to).join("").trim()}${to < pieces.length ? " …" : ""}`;
  });
}

/** The whole name: the model, where several are open, the stack of attention, where a model has several, and the text. */
export function fullName({ name, info }: Doc): string {
  const word = `stack_${info.stack}`;
  const model = docs.value.every((other) => other.info.name === info.name) ? [] : [info.name];
  return [...model, ...(info.stack === "self" ? [] : [isWord(word) ? say(word) : info.stack]), name].join(" · ");
}

/** A name for each open trace, in order. */
export const shortNames = (): string[] => distinct(docs.value.map(fullName));
