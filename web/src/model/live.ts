// A page with a model runs each text as it is typed, in place of the one before.
import { batch, effect, signal, untracked } from "@preact/signals";
import { Refused } from "./backend";
import type { Ask, Outcome } from "./ask";
import type { Shares } from "../encoder/answers";
import { held, type Guess } from "../heads/guesses";
import { Local } from "./local";
import { brought, correct, openOnFinding } from "../state/opening";
import { backend, outcomes, start, trouble } from "./remote";
import { toShare } from "../state/hash";
import * as state from "../state/state";
import { FIELDS } from "../state/state";
import { chunks, doc, docs, headOf, lookAt, openTrace, reason, setB, shown, type Doc } from "../state/store";
import { engine } from "../trace/engine";
import { largestPlaces } from "../trace/strongest";
import { fromBase64 } from "../trace/safetensors";
import { say } from "../words";

/** The sentence, and the one that it is compared with; null where there is none. */
export const texts = signal<[string, string | null]>(["", null]);
/** Heads that are silenced in both. */
export const silent = signal<Ask["ablate"]>([]);
/** Milliseconds from the keystroke to the picture, of how many tokens, and the keystroke's number. */
export const took = signal<{ tokens: number; ms: number; turn: number } | null>(null);
/** The guess with every head, to hold it against. */
export const whole = signal<Outcome["top"] | null>(null);
export const cosine = signal<Shares | null>(null);

/** The trace of each box. */
const ids: [number | null, number | null] = [null, null];
/** Boxes that say something else than their picture: not shown yet, and not to be shown. */
const [stale, failed] = [new Set<0 | 1>(), new Set<0 | 1>()];
let working = false;
let local: Local | null = null;
let asked = 0;
let began = 0;
let left = new AbortController();

/** The first sentence's trace, unless its tab was closed. */
export const first = (): Doc | undefined => docs.value.find(({ id }) => id === ids[0]);

/** The packed model. */
function packed(bytes: number): ArrayBuffer {
  const all = new Uint8Array(bytes);
  let at = 0;
  for (const base64 of chunks((part) => `hs-model-${part}`)) {
    const part = fromBase64(base64);
    all.set(part, at);
    at += part.length;
  }
  if (at !== bytes) throw new Error(`the page contains only ${at} of the ${bytes} bytes of its model: it is truncated`);
  return all.buffer;
}

/** Unpack the model that the page holds, and run the first text. */
export async function openModel(waiting: HTMLElement): Promise<Doc> {
  const { model } = start.value;
  waiting.textContent = say("live_unpacking", { mb: (model!.bytes / 1e6).toFixed(1) });
  if (!("DecompressionStream" in window)) throw new Error(say("live_unfit"));
  const script = document.getElementById("hs-encoder")?.textContent ?? "";
  try {
    local = new Local(script);
  } catch (error) {
    throw new Error(say("live_unstarted", { why: reason(error) }));
  }
  await local.load(packed(model!.bytes));
  backend.value = local;
  texts.value = [state.typed.value || model!.text, null];
  await show(0);
  void background();
  return docs.value[0];
}

/** Run what a box says, and put its trace where the last one of this box was, unless somebody typed on meanwhile. */
async function show(slot: 0 | 1): Promise<void> {
  const text = texts.value[slot];
  if (text === null) return drop();
  if (!text.trim()) throw new Refused(say("live_empty"));
  const answer = await local!.trace({ text, ablate: silent.value });
  if (stale.has(slot)) return;
  const old = ids[slot];
  await openTrace({ bytes: answer.bytes }, null, answer.id, null, (one) => batch(() => {
    const seen = doc.value?.id === old ? doc.value!.info.queries.tokens : null;
    const gone = docs.value.find(({ id }) => id === old);
    const guessed = gone && guessOf(gone);
    const { [gone?.remote ?? ""]: _, ...others } = outcomes.value;
    outcomes.value = { ...others, [answer.id]: answer.outcomes };
    docs.value = gone ? docs.value.map((other) => (other === gone ? one : other)) : [...docs.value, one];
    ids[slot] = one.id;
    forget(slot);
    if (slot === 1 && !gone) setB(docs.value.length - 1);
    if (slot === 0 && text === brought.value) {
      brought.value = "";
      correct();
    } else if (seen) keepPinned(seen, guessed);
  }));
  if (old !== null) void engine.ask("close", { id: old });
}

/** The answers about a box's last sentence, which are not of the next. */
function forget(slot: 0 | 1): void {
  cosine.value = null;
  if (slot === 0) held.value = null;
}

/** Close the second box's trace. */
function drop(): void {
  const gone = ids[1];
  if (gone === null) return;
  batch(() => {
    forget(1);
    lookAt(docs.value.findIndex(({ id }) => id === ids[0]));
    docs.value = docs.value.filter(({ id }) => id !== gone);
    state.trace.value = 0;
    setB(null);
  });
  ids[1] = null;
  void engine.ask("close", { id: gone });
}

/** The first [MASK] of a text, and the guess for it; undefined where it has none. */
export const guessOf = ({ remote }: Doc): Outcome | undefined => outcomes.value[remote ?? ""]?.[0];

/** What is looked at where a text opened on its guess; null once the head that turns it was looked at, or something was asked. */
let opened: string | null = null;

/** A text opens on its guess: from the [MASK] looks the head that turns it, once each was silenced. Without a [MASK], on a finding. */
export function openOnGuess(one: Doc): void {
  const guess = guessOf(one);
  openOnFinding(one);
  if (guess?.place != null) {
    batch(() => {
      state.query.value = guess.place;
      state.key.value = null;
      state.statistic.value = "guess";
    });
    opened = toShare(FIELDS);
  } else if (state.statistic.value === "guess") state.statistic.value = "entropy";
}

/** Look at the head without which the guess loses most, unless the reader did something meanwhile. */
async function lookAtTurn(one: Doc): Promise<void> {
  if (opened !== toShare(FIELDS) || doc.value?.id !== one.id) return;
  const losses = held.value!.heads.map((head) => head!.loss);
  const { layer, head } = headOf(one.info, largestPlaces(losses, 1)[0]);
  const words = shown.value!;
  const row = words.rowOf[state.query.value!];
  const weights = await engine.ask("rows", { trace: one.id, layer, head, mean: null, view: words.view, from: row, to: row + 1, normed: false });
  if (opened !== toShare(FIELDS)) return;
  opened = null;
  const [key] = largestPlaces(weights.map((weight, n) => (words.columns[n].special ? -1 : weight)), 1);
  batch(() => {
    state.layer.value = layer;
    state.head.value = head;
    state.key.value = words.columns[key]?.tokens[0] ?? null;
  });
}

/** Keep the pinned cell where its words still stand; a text that lacks them opens on its own guess or finding. */
function keepPinned(before: readonly string[], guessed: Outcome | undefined): void {
  const now = doc.value!.info.queries.tokens;
  state.hoverRow.value = state.hoverColumn.value = null;
  const stays = (place: number | null): boolean => place === null || (place < now.length && now[place] === before[place]);
  if (stays(state.query.value) && stays(state.key.value)) {
    const guesses = guessOf(doc.value!);
    if (!guesses !== !guessed) state.statistic.value = guesses ? "guess" : "weight";
    return;
  }
  const [layer, head] = [state.layer.value, state.head.value];
  batch(() => {
    state.query.value = state.key.value = state.box.value = null;
    state.from.value = state.to.value = state.NONE;
    openOnGuess(doc.value!);
    if (state.query.value === null) [state.layer.value, state.head.value] = [layer, head];
  });
}

/** A text was typed: the newest wins. */
export async function type(text: string, slot: 0 | 1): Promise<void> {
  texts.value = slot ? [texts.value[0], text] : [text, texts.value[1]];
  if (slot === 0) whole.value = null;
  await again(slot);
}

/** Show these boxes' texts, one after the other, until every picture is of what its box says. */
async function again(...slots: (0 | 1)[]): Promise<void> {
  asked++;
  opened = null;
  brought.value = "";
  began = performance.now();
  left.abort();
  trouble.value = null;
  for (const slot of [...slots, ...failed]) stale.add(slot);
  if (working) return;
  working = true;
  for (const slot of stale) {
    stale.delete(slot);
    failed.delete(slot);
    try {
      await show(slot);
    } catch (error) {
      if (stale.has(slot)) continue;
      failed.add(slot);
      trouble.value = reason(error);
    }
  }
  working = false;
  if (!failed.size) timed(asked);
  void background();
}

/** Measure the time to the picture, once it is drawn. */
function timed(turn: number): void {
  const [from, shown] = [began, first()];
  requestAnimationFrame(() => setTimeout(() => {
    if (shown && turn === asked) took.value = { tokens: shown.info.queries.tokens.length, ms: performance.now() - from, turn };
  }));
}

/** What takes longer: the guess without each head, and the cosine. */
async function background(): Promise<void> {
  left = new AbortController();
  const { signal: gone } = left;
  const [a, b] = ids.map((id) => docs.value.find((one) => one.id === id)?.remote ?? null);
  const one = first();
  if (!silent.value.length) whole.value = (one && guessOf(one)?.top) ?? null;
  try {
    if (a && b) {
      const shares = await local!.cosine(a, b);
      gone.throwIfAborted();
      cosine.value = shares;
    }
    if (!a || !one || !guessOf(one)) return;
    const heads: (Guess | undefined)[] = Array.from({ length: one.info.layers.length * one.info.heads });
    held.value = { doc: one.id, heads };
    for await (const without of local!.without(a, gone)) {
      heads[without.layer * one.info.heads + without.head] = { ...without, turns: without.label !== guessOf(one)!.top[0].label };
      held.value = { doc: one.id, heads: [...heads] };
    }
    await lookAtTurn(one);
  } catch (error) {
    if (!gone.aborted && !(error instanceof Refused)) trouble.value = reason(error);
  }
}

/** Silence these heads in both texts, and no others. */
export async function silence(heads: Ask["ablate"]): Promise<void> {
  silent.value = heads;
  await again(0, 1);
}

/** Open or close the second box. */
export async function compare(on: boolean): Promise<void> {
  texts.value = [texts.value[0], on ? texts.value[0] : null];
  await again(1);
}

/** The address keeps the sentence for as long as the reader wants, and one that it brings is shown. */
export const kept = signal(false);
export function followTyped(): void {
  effect(() => {
    const sentence = state.typed.value;
    if (sentence === (kept.peek() ? texts.peek()[0] : "")) return;
    kept.value = sentence !== "";
    if (!sentence || sentence === texts.peek()[0]) return;
    untracked(() => void type(sentence, 0));
    brought.value = sentence;
  });
  effect(() => { state.typed.value = kept.value ? texts.value[0] : ""; });
}
