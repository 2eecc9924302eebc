// Answers to the page's questions, as headscope/page/server.py and runs.py give them: traces, and runs of cause and effect.
import type { Ask, Outcome, Run as Record_, Result } from "../model/ask";
import { Refused, type Change } from "../model/backend";
import { forward, rerun, type Edit, type Pass } from "./forward";
import type { Run } from "./heads";
import { Model } from "./model";
import { softmax } from "./products";
import { dot } from "../trace/terms";
import { choose, masksOf, plain, read, tokenId, type Asker } from "./targets";
import { maskedWord, partsOf, pooled } from "./tops";
import { labels, traceFile, type Catalog } from "./tracefile";
import { WordPiece } from "./wordpiece";

const TOP = 8;
const KEPT = 64;
const SHORT = 300;

interface Traced {
  id: string;
  bytes: ArrayBuffer;
  outcomes: Outcome[];
  run: Record_ | null;
}

/** A layer's effects, or at the end the record of all; between them, the worker looks whether the page still waits. */
export type Line = { done: number; all: number } | { layer: number; change: number[] } | { run: Record_ };

/** The guess for the first [MASK] without one head: its best token and the probability; what the guess with the head loses of its own. */
export interface Without {
  layer: number;
  head: number;
  label: string;
  share: number;
  loss: number;
}

/** The cosine of two texts' vectors, and what each token adds to it: the shares of each text sum up to the cosine. */
export interface Shares {
  cosine: number;
  shares: [number[], number[]];
  labels: [string[], string[]];
}

export class Desk {
  private readonly wordpiece: WordPiece;
  private readonly kept = new Map<string, Run>();
  private next = 0;

  constructor(private readonly model: Model, private readonly catalog: Catalog) {
    this.wordpiece = new WordPiece(model.about.vocabulary);
  }

  private readonly asker: Asker = {
    encode: (text) => this.wordpiece.encode(text),
    known: (token) => this.wordpiece.id(token),
    pass: (text) => this.passed(text, null, []).pass,
  };

  /** A text's run, another one's with changes, or one that was kept. */
  trace(change: Change): Traced {
    const ask = asked(change);
    if (change.kept !== undefined) return this.traced(change.kept, this.held(change.kept), null);
    if (change.base === undefined) {
      const run = this.passed(change.text ?? "", change.pair ?? null, ask.ablate);
      return this.traced(this.keep(run), run, null);
    }
    const base = this.held(change.base);
    const run = this.changed(base, ask);
    const id = this.keep(run);
    return this.traced(id, run, { ...this.record(change.base, base, ask, this.compared(base, run, ask)), trace: id });
  }

  private traced(id: string, run: Run, record: Record_ | null): Traced {
    return { id, bytes: traceFile(this.model, run, this.catalog), outcomes: this.outcomes(run), run: record };
  }

  /** Each head in turn, the last layer first; one edge; nothing else. */
  *study(change: Change): Generator<Line> {
    const ask = asked(change);
    const base = this.held(change.base ?? "");
    if (ask.kind === "edge") {
      const [layer, head, query, key] = ask.edge!;
      const pass = rerun(this.model, base.pass, [{ layer, head, how: "edge", edge: [query, key] }]);
      yield { run: this.record(change.base!, base, ask, this.compared(base, { ...base, pass }, ask)) };
      return;
    }
    if (ask.kind !== "heads") throw new Refused("attributions of tokens and groups of heads need headscope itself: headscope view runs them");
    yield* this.eachHead(change.base!, base, ask);
  }

  private *eachHead(name: string, base: Run, ask: Ask): Generator<Line> {
    const { heads, layers } = this.model.about.config;
    const how = ask.method as Edit["how"];
    const source = ask.patch_from === null ? null : this.passed(ask.patch_from, null, []);
    if (source && source.pass.tokens !== base.pass.tokens) {
      throw new Refused(`the text has ${base.pass.tokens} tokens and the one to patch from ${source.pass.tokens}: they must have as many`);
    }
    const target = choose(this.model, base.encoded, base.pass, ask.target, this.asker);
    const before = read(this.model, target, base.pass);
    const change: number[][] = [];
    for (let layer = layers - 1; layer >= 0; layer--) {
      change[layer] = [];
      for (let head = 0; head < heads; head++) {
        yield { done: layers - 1 - layer, all: layers };
        const edit: Edit = { layer, head, how, ...(source && { source: source.pass }), ...(ask.edge && { edge: [ask.edge[0], ask.edge[1]] }) };
        change[layer].push(read(this.model, target, rerun(this.model, base.pass, [edit])).value - before.value);
      }
      yield { layer, change: change[layer] };
    }
    yield { run: { ...this.record(name, base, ask, { result: { ...EMPTY, change, base: before.value }, target: plain(target) }) } };
  }

  /** The guess for the first [MASK] without each head beside those that are silenced; nothing without a mask. */
  *without(name: string): Generator<Without> {
    const { heads, layers } = this.model.about.config;
    const run = this.held(name);
    const [mask] = masksOf(this.model, run.encoded);
    if (mask === undefined || !this.model.about.fills) return;
    const before = this.shares(run.pass, mask);
    const guess = largest(before);
    for (let layer = layers - 1; layer >= 0; layer--)
      for (let head = 0; head < heads; head++) {
        const pass = rerun(this.model, run.pass, [...silenced(run.ablated), { layer, head, how: "zero" }]);
        const shares = this.shares(pass, mask);
        const now = largest(shares);
        yield { layer, head, label: this.named(now), share: shares[now], loss: before[guess] - shares[guess] };
      }
  }

  cosine(a: string, b: string): Shares {
    const runs = [this.held(a), this.held(b)] as const;
    const vectors = runs.map(({ pass }) => pooled(this.model, pass));
    const lengths = vectors.map((vector) => Math.hypot(...vector));
    const share = (side: 0 | 1): number[] => {
      const size = lengths[0] * lengths[1];
      return Array.from(partsOf(this.model, runs[side].pass), (part) => part.reduce((sum, value, n) => sum + (value * vectors[1 - side][n]) / size, 0));
    };
    const named = runs.map(({ encoded }) => labels(encoded, this.model.about.vocabulary.prefix));
    const shares: Shares["shares"] = [share(0), share(1)];
    return { cosine: shares[0].reduce((sum, value) => sum + value, 0), shares, labels: [named[0], named[1]] };
  }

  private passed(text: string, pair: string | null, ablated: Ask["ablate"]): Run {
    const encoded = this.wordpiece.encode(text, pair);
    return { text, pair, encoded, pass: forward(this.model, encoded.ids, encoded.segments, silenced(ablated)), ablated };
  }

  /** The same tokens with heads silenced and tokens masked or replaced; words and spans stay those of the text. */
  private changed(base: Run, { ablate, mask, replace }: Ask): Run {
    const { vocabulary, mask: masked } = this.model.about;
    const [ids, tokens] = [[...base.encoded.ids], [...base.encoded.tokens]];
    if (mask.length && masked === null) throw new Refused("this tokenizer has no mask token: silence heads instead");
    const put = (at: number, id: number): void => {
      if (!(at in ids)) throw new Refused(`there is no token ${at}: tokens run from 0 to ${ids.length - 1}`);
      ids[at] = id;
      tokens[at] = vocabulary.tokens[id];
    };
    for (const at of mask) put(at, masked!);
    for (const [at, word] of replace) put(at, tokenId(word.trim(), "a token is replaced by one token", this.asker.encode, this.asker.known));
    const encoded = { ...base.encoded, ids, tokens };
    return { ...base, encoded, pass: forward(this.model, ids, encoded.segments, silenced(ablate)), ablated: ablate };
  }

  /** The output and the guesses before and after, and how far each token moved. */
  private compared(before: Run, after: Run, ask: Ask): { result: Result; target: Record_["target"] } {
    const { d } = this.model.about.config;
    const target = choose(this.model, before.encoded, before.pass, ask.target, this.asker);
    const [was, now] = [before, after].map(({ pass }) => read(this.model, target, pass));
    const [a, b] = [before.pass.last, after.pass.last];
    const apart = a.map((value, n) => b[n] - value);
    const length = (x: Float32Array, t: number): number => Math.sqrt(dot(x, t * d, x, t * d, d));
    const shift = Array.from({ length: before.pass.tokens }, (_, t) => length(apart, t) / Math.max(length(a, t), 1e-12));
    const result: Result = {
      ...EMPTY, before: was.value, after: now.value,
      ...(was.aside !== null && now.aside !== null && { before_aside: was.aside, after_aside: now.aside }),
      moved: shift.reduce((sum, value) => sum + value, 0) / shift.length, shift, was: this.outcomes(before), now: this.outcomes(after),
    };
    return { result, target: plain(target) };
  }

  private record(base: string, { text, pair, encoded }: Run, ask: Ask, { result, target }: Pick<Record_, "result" | "target">): Record_ {
    const named = labels(encoded, this.model.about.vocabulary.prefix);
    const places = [...ask.mask, ...ask.replace.map(([at]) => at), ...(ask.edge ?? []).slice(-2)].filter((at) => at in named);
    return {
      id: crypto.getRandomValues(new Uint32Array(2)).join("-"), base, text: (pair === null ? text : `${text} | ${pair}`).slice(0, SHORT),
      ask, names: Object.fromEntries(places.map((at) => [at, named[at]])), target, result, trace: null,
    };
  }

  /** The likeliest tokens at every mask. */
  private outcomes({ encoded, pass }: Run): Outcome[] {
    if (!this.model.about.fills) return [];
    return masksOf(this.model, encoded).map((place) => ({
      what: encoded.tokens[place], place, token: encoded.tokens[place], top: this.best(pass, place, TOP),
    }));
  }

  /** The probability of each token of the vocabulary at a mask. */
  private shares(pass: Pass, place: number): Float64Array {
    return softmax(maskedWord(this.model, pass.last, place));
  }

  private best(pass: Pass, place: number, most: number): Outcome["top"] {
    const shares = this.shares(pass, place);
    const order = Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]);
    return order.slice(0, most).map((id) => ({ label: this.named(id), share: shares[id] }));
  }

  private named(id: number): string {
    return this.model.about.vocabulary.tokens[id] ?? `#${id}`;
  }

  private keep(run: Run): string {
    const id = String(this.next++);
    this.kept.set(id, run);
    if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value!);
    return id;
  }

  private held(name: string): Run {
    const run = this.kept.get(name);
    if (!run) throw new Refused("the page no longer has this text: run it again");
    return run;
  }
}

const EMPTY: Result = { change: [], base: 0, moved: null, shift: null, was: [], now: [], scores: [], total: 0, rest: 0, gap: 0 };

const largest = (values: Float64Array): number => values.reduce((best, value, n) => (value > values[best] ? n : best), 0);

const silenced = (heads: Run["ablated"]): Edit[] => heads.map(([layer, head]) => ({ layer, head, how: "zero" }));

function asked({ kind = "change", method = "", target = null, ablate = [], mask = [], replace = [], edge = null, patch_from = null }: Change): Ask {
  return { kind, method: kind === "heads" ? method : "", target, ablate, mask, replace, edge, patch_from };
}
