// The one number of an output that is explained, as headscope.runs.targets names and reads it.
import type { Ask, Target as Named } from "../model/ask";
import type { Pass } from "./forward";
import type { Model } from "./model";
import { softmax } from "./products";
import { Refused } from "../model/backend";
import { maskedWord, pooled } from "./tops";
import type { Encoded } from "./wordpiece";

export interface Target extends Named {
  /** The token whose logit is read; of a vector, null. */
  id: number | null;
  /** Of length 1, what vectors are measured along, and the length of the text's own. */
  direction: Float64Array | null;
  length: number;
}

/** A target's number, and the probability or cosine that goes with it. */
export interface Reading {
  value: number;
  aside: number | null;
}

export const masksOf = (model: Model, { ids }: Encoded): number[] =>
  ids.flatMap((id, at) => (id === model.about.mask ? [at] : []));

/** True for a token with a letter or digit that is no continuation and no special token. */
const isWord = (token: string): boolean => !token.startsWith("##") && !/^[[<].+[\]>]$/.test(token) && /[\p{L}\p{N}]/u.test(token);

/** The number of the token that a word is, in the vocabulary's spelling or in one that it makes of it. */
export function tokenId(word: string, why: string, encode: (text: string) => Encoded, known: (token: string) => number | undefined): number {
  const id = known(word);
  if (id !== undefined) return id;
  const { tokens, ids, special } = encode(word);
  const places = ids.flatMap((_, at) => (special[at] ? [] : [at]));
  if (places.length === 1 && isWord(tokens[places[0]])) return ids[places[0]];
  throw new Refused(`'${word}' is not in the vocabulary, which spells it ${places.map((at) => tokens[at]).join(" ")}; ${why}`);
}

function wordAt(model: Model, id: number, row: number): Target {
  return { kind: "word", label: model.about.vocabulary.tokens[id], row, unit: "logit", aside: "probability", id, direction: null, length: 1 };
}

/** The text's vector, or its distance from what it was, or its cosine with another text's. */
function vector(model: Model, kind: Target["kind"], label: string, own: Pass, other: Pass): Target {
  const [mine, theirs] = [pooled(model, own), pooled(model, other)];
  const [length, size] = [Math.hypot(...mine), Math.hypot(...theirs)];
  const unit = kind === "embedding" ? "share" : "cosine";
  return {
    kind, label, row: model.about.config.pooling === "cls" ? 0 : null, unit, aside: unit === "share" ? "cosine" : "",
    id: null, direction: theirs.map((value) => value / size), length,
  };
}

export interface Asker {
  encode(text: string): Encoded;
  known(token: string): number | undefined;
  pass(text: string): Pass;
}

export function choose(model: Model, encoded: Encoded, pass: Pass, wanted: Ask["target"], asker: Asker): Target {
  const masks = masksOf(model, encoded);
  const fills = model.about.fills;
  if (wanted === null) {
    if (!masks.length || !fills) return vector(model, "embedding", "the text's vector", pass, pass);
    const logits = maskedWord(model, pass.last, masks[0]);
    let best = -1;
    model.about.vocabulary.tokens.forEach((token, id) => { if (isWord(token) && (best < 0 || logits[id] > logits[best])) best = id; });
    return wordAt(model, best, masks[0]);
  }
  const [kind, named, row = masks[0]] = wanted;
  if (kind === "word" && named !== undefined) {
    if (!fills) throw new Refused("the model has no masked-LM head: choose another output");
    if (!masks.length) throw new Refused(`the text has no [MASK], so there is no place for the word '${named}'`);
    if (!masks.includes(row as number)) throw new Refused(`token ${row} is no [MASK]: the masks are at ${masks.join(", ")}`);
    return wordAt(model, typeof named === "number" ? named : tokenId(named, "a mask stands for one token", asker.encode, asker.known), row as number);
  }
  if (kind === "embedding" || kind === "embedding_distance") return vector(model, kind as Target["kind"], "the text's vector", pass, pass);
  if (kind === "similarity" && typeof named === "string") return vector(model, kind, named, pass, asker.pass(named));
  throw new Refused(`the page can't read the output ${wanted.join(" ")}: headscope view runs it`);
}

export function read(model: Model, target: Target, pass: Pass): Reading {
  if (target.direction === null) {
    const logits = maskedWord(model, pass.last, target.row!);
    return { value: logits[target.id!], aside: softmax(logits)[target.id!] };
  }
  const vector = pooled(model, pass);
  const along = vector.reduce((sum, value, n) => sum + value * target.direction![n], 0);
  const cosine = along / Math.hypot(...vector);
  if (target.kind === "embedding") return { value: along / target.length, aside: cosine };
  return { value: target.kind === "similarity" ? cosine : 1 - cosine, aside: null };
}

/** What the page shows of a target. */
export const plain = ({ kind, label, row, unit, aside }: Target): Named => ({ kind, label, row, unit, aside });
