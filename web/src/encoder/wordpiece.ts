// WordPiece as the `tokenizers` library has it: BERT's normalizer and pre-tokenizer, then the longest tokens first.
import type { Axis } from "../trace/trace";
import { Refused } from "../model/backend";
import { DECOMPOSED, DROPPED, IDEOGRAPHS, MARKS, PUNCTUATION, SEPARATORS, SPACES } from "./unicode";

/** A special token of the template, or the text in that place (0 or 1). */
export type Slot = { id: number; segment: number } | { text: number; segment: number };

/** A tokenizer as headscope/page/typed.py writes it. */
export interface Vocabulary {
  /** Tokens by id. */
  tokens: string[];
  /** Tokens that are found in a text before anything else: their ids. */
  added: number[];
  /** Of these, the ones that words are not made of. */
  only_added: number[];
  unknown: number;
  prefix: string;
  /** Characters of the longest word that is looked up. */
  longest: number;
  clean: boolean;
  ideographs: boolean;
  strip: boolean;
  lowercase: boolean;
  /** True to lower-case texts before anything else, as sentence-transformers does: there a final sigma is ς, in `lowercase` σ. */
  lower_first: boolean;
  single: Slot[];
  pair: Slot[];
}

export type Encoded = Required<Omit<Axis, "labels" | "texts">>;

interface Pieces {
  ids: number[];
  words: number[];
  spans: [number, number][];
  count: number;
}

/** True for the code points of ranges, as unicode.ts has them. */
function setOf(ranges: string): (point: number) => boolean {
  const edges: number[] = [];
  let at = 0;
  for (const range of ranges.split(" ")) {
    const [gap, length] = range.split(".").map((digits) => parseInt(digits, 36));
    edges.push(at + gap, at + gap + length);
    at += gap + length;
  }
  return (point) => {
    let [low, high] = [0, edges.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (edges[middle] <= point) low = middle + 1;
      else high = middle;
    }
    return low % 2 === 1;
  };
}

const [isDropped, isSpace, isSeparator, isIdeograph, isMark, isPunctuation, isDecomposed] =
  [DROPPED, SPACES, SEPARATORS, IDEOGRAPHS, MARKS, PUNCTUATION, DECOMPOSED].map(setOf);
const CODE = (sign: string): number => sign.codePointAt(0)!;

/** A character as the vocabulary spells it, and the place of the one in the text that it came from. */
interface Sign {
  sign: string;
  from: number;
}

/** Canonical decomposition of the characters that the library decomposes, whatever this browser's Unicode has. */
function decomposed(signs: Sign[]): Sign[] {
  const out: Sign[] = [];
  let chunk: Sign[] = [];
  const flush = (): void => {
    // where marks change places, the library counts on from one first part to the next: so are places counted here
    const first = new Map<string, boolean[]>();
    for (const { sign } of chunk)
      Array.from(sign.normalize("NFD")).forEach((part, n) => first.set(part, [...(first.get(part) ?? []), n === 0]));
    let at = 0;
    for (const sign of chunk.map(({ sign }) => sign).join("").normalize("NFD")) {
      if (first.get(sign)!.shift()) at++;
      out.push({ sign, from: chunk[Math.max(0, at - 1)].from });
    }
    chunk = [];
  };
  for (const one of signs) {
    if (isDecomposed(CODE(one.sign)) || one.sign.normalize("NFD") === one.sign) chunk.push(one);
    else {
      flush();
      out.push(one);
    }
  }
  flush();
  return out;
}

export class WordPiece {
  private readonly ids: Map<string, number>;
  /** Tokens that words are made of. */
  private readonly parts: Map<string, number>;
  private readonly added: RegExp | null;

  constructor(readonly vocabulary: Vocabulary) {
    this.ids = new Map(vocabulary.tokens.map((token, id) => [token, id]));
    this.parts = new Map(this.ids);
    for (const id of vocabulary.only_added) this.parts.delete(vocabulary.tokens[id]);
    const longestFirst = vocabulary.added.map((id) => vocabulary.tokens[id]).sort((a, b) => b.length - a.length);
    this.added = longestFirst.length ? new RegExp(longestFirst.map((token) => token.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")).join("|"), "gu") : null;
  }

  id(token: string): number | undefined {
    return this.ids.get(token);
  }

  /** Tokens of a text, or of two, between the special tokens of the template. */
  encode(text: string, pair: string | null = null): Encoded {
    const parts = [text, ...(pair === null ? [] : [pair])].map((part) => this.pieces(part));
    parts.forEach(({ ids }, n) => {
      if (!ids.length) throw new Refused(`${n ? "the second text" : "the text"} has no tokens: type some words`);
    });
    const { tokens, single, pair: double } = this.vocabulary;
    const encoded: Encoded = { tokens: [], ids: [], segments: [], special: [], words: [], spans: [] };
    const put = (id: number, segment: number, special: boolean, word: number | null, span: [number, number] | null): void => {
      encoded.ids.push(id);
      encoded.tokens.push(tokens[id]);
      encoded.segments.push(segment);
      encoded.special.push(special);
      encoded.words.push(word);
      encoded.spans.push(span);
    };
    for (const slot of parts.length > 1 ? double : single) {
      if ("id" in slot) put(slot.id, slot.segment, true, null, null);
      else {
        const { ids, words, spans } = parts[slot.text];
        const before = slot.text ? parts[0].count : 0;
        ids.forEach((id, n) => put(id, slot.segment, false, words[n] + before, spans[n]));
      }
    }
    return encoded;
  }

  private pieces(text: string): Pieces {
    const lone = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.exec(text);
    if (lone) throw new Refused(`character ${lone.index} of the text is half of a pair of surrogates: type it again`);
    const pieces: Pieces = { ids: [], words: [], spans: [], count: 0 };
    let [unit, point] = [0, 0];
    const plain = (part: string): void => {
      this.split(part, point, pieces);
      point += Array.from(part).length;
    };
    for (const match of this.added ? text.matchAll(this.added) : []) {
      plain(text.slice(unit, match.index));
      const length = Array.from(match[0]).length;
      put(pieces, this.ids.get(match[0])!, pieces.count++, [point, point + length]);
      point += length;
      unit = match.index + match[0].length;
    }
    plain(text.slice(unit));
    return pieces;
  }

  /** The words of a text without added tokens. */
  private split(text: string, first: number, pieces: Pieces): void {
    let word: Sign[] = [];
    const flush = (): void => {
      if (word.length) this.look(word, pieces);
      word = [];
    };
    for (const one of this.normalized(text, first)) {
      const code = CODE(one.sign);
      if (isSeparator(code)) flush();
      else if (isPunctuation(code)) {
        flush();
        word = [one];
        flush();
      } else word.push(one);
    }
    flush();
  }

  private normalized(text: string, first: number): Sign[] {
    const { clean, ideographs, strip, lowercase, lower_first } = this.vocabulary;
    let signs = Array.from(text, (sign, n) => ({ sign, from: first + n }));
    if (lower_first) {
      const small = Array.from(text.toLowerCase()).values();
      signs = signs.flatMap(({ sign, from }) => Array.from(sign.toLowerCase(), () => ({ sign: small.next().value!, from })));
    }
    if (clean) {
      signs = signs.filter(({ sign }) => !isDropped(CODE(sign)));
      signs = signs.map((one) => (isSpace(CODE(one.sign)) ? { ...one, sign: " " } : one));
    }
    if (ideographs) {
      signs = signs.flatMap((one) => (isIdeograph(CODE(one.sign)) ? [{ ...one, sign: " " }, one, { ...one, sign: " " }] : [one]));
    }
    if (strip) signs = decomposed(signs).filter(({ sign }) => !isMark(CODE(sign)));
    if (lowercase) signs = signs.flatMap(({ sign, from }) => Array.from(sign.toLowerCase(), (small) => ({ sign: small, from })));
    return signs;
  }

  /** One word's tokens: at each place the longest that the vocabulary has, or the unknown token for the whole word. */
  private look(word: Sign[], pieces: Pieces): void {
    const { unknown, prefix, longest } = this.vocabulary;
    const number = pieces.count++;
    const span = (from: number, to: number): [number, number] => [word[from].from, word[to - 1].from + 1];
    const found: [number, [number, number]][] = [];
    for (let at = 0; at < word.length && word.length <= longest;) {
      let end = word.length;
      let id: number | undefined;
      for (; end > at; end--) {
        id = this.parts.get((at ? prefix : "") + word.slice(at, end).map(({ sign }) => sign).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) {
        found.length = 0;
        break;
      }
      found.push([id, span(at, end)]);
      at = end;
    }
    if (!found.length) found.push([unknown, span(0, word.length)]);
    for (const [id, place] of found) put(pieces, id, number, place);
  }
}

function put(pieces: Pieces, id: number, word: number, span: [number, number]): void {
  pieces.ids.push(id);
  pieces.words.push(word);
  pieces.spans.push(span);
}
