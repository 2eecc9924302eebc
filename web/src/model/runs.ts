// Runs of cause and effect: the question that is being put, the runs that the server or the file has, and which of them still hold.
import { batch, computed, effect, signal } from "@preact/signals";
import { askKey, changeName, NOTHING, type Ask, type Group, type Run } from "./ask";
import { placeOf } from "../state/comparing";
import { abortable, backend, hasModel, run, running, start, trouble, told } from "./remote";
import * as state from "../state/state";
import { at, column, doc, docOf, docs, headName, headOf, lookAt, placeOfDoc, row, setB, shown, type Doc } from "../state/store";
import { say, type Word } from "../words";

/** All runs, the oldest first. */
export const runs = signal<Run[]>([]);
/** The layers of a run that is under way. */
export const arriving = signal<{ base: string; ask: Ask; names: Record<string, string>; change: number[][] } | null>(null);

/** What was chosen to be changed, by the id of the text's trace. */
export type Chosen = Pick<Ask, "ablate" | "mask" | "replace">;
const choices = signal<Record<string, Chosen>>({});
export const patchText = signal("");
export const target = signal<Ask["target"]>(null);

/** The trace that is changed: for a changed run, its original. */
export const origin = computed<Doc | null>(() => docs.value.find((candidate) => candidate.id === doc.value?.of?.origin) ?? doc.value);
export const chosen = computed<Chosen>(() => choices.value[origin.value?.remote ?? ""] ?? NOTHING);

export function choose(next: Partial<Chosen>): void {
  const base = origin.value?.remote;
  if (!base) return;
  batch(() => {
    const { ablate, mask, replace } = { ...chosen.value, ...next };
    choices.value = { ...choices.value, [base]: { ablate, mask, replace } };
    state.way.value = "these";
    state.pane.value = "causes";
  });
}

/** The pinned query and key, by their first tokens. */
export const pinned = computed<[number, number] | null>(() =>
  row.value === null || column.value === null ? null : [shown.value!.rows[row.value].tokens[0], shown.value!.columns[column.value].tokens[0]]);

/** The chosen head's numbers in the model. */
export function headHere(): [number, number] {
  const { l, h } = headName(doc.value!.info, at.value);
  return [l, h];
}

/** The question as it stands; null where something is missing, such as a pinned cell. */
export const asked = computed<Ask | null>(() => {
  const way = state.way.value;
  const ask: Ask = { ...NOTHING, target: target.value };
  if (target.value?.some((part) => part === "")) return null;
  if (way === "these") {
    const { ablate, mask, replace } = chosen.value;
    return ablate.length + mask.length + replace.length ? { ...ask, kind: "change", method: "", ablate, mask, replace } : null;
  }
  if (way === "cut") return pinned.value && { ...ask, kind: "edge", method: "", edge: [...headHere(), ...pinned.value] };
  if (way === "edge") return pinned.value && { ...ask, method: way, edge: pinned.value };
  if (way === "patch") return patchText.value.trim() ? { ...ask, method: way, patch_from: patchText.value } : null;
  if (way === "groups") return { ...ask, kind: way, method: "" };
  return { ...ask, kind: state.isOfTokens(way) ? "tokens" : "heads", method: way };
});

const ofEachHead = (one: Run | null): boolean => ["heads", "groups"].includes(one?.ask.kind ?? "") && one!.base === doc.value?.remote;

/** The last run that changed each head of this text in turn. */
const lastOfEach = computed<Run | null>(() => runs.value.filter(ofEachHead).at(-1) ?? null);

/** The run in view: the one that was chosen, else, as where it is no longer there, the last that changed each head of this text in turn. */
export const shownRun = computed<Run | null>(() => runs.value.find(({ id }) => id === state.run.value) ?? lastOfEach.value);

/** The group of heads that is looked at in a run, if it silenced groups. */
export const group = ({ result: { groups } }: Run): Group | undefined => groups?.[Math.min(state.group.value, groups.length - 1)];

/** The run beside whose answer the text in view stands: its words and heads are marked. */
export const beside = computed<Run | null>(() => (state.pane.value === "causes" && shownRun.value?.base === doc.value?.remote ? shownRun.value : null));

/** How far each token turns or moves in this run, and the most. */
export const felt = computed<{ values: number[]; most: number } | null>(() => {
  const values = beside.value && (group(beside.value)?.turn ?? beside.value.result.shift);
  return values ? { values, most: Math.max(1e-9, ...(beside.value!.result.groups?.flatMap(({ turn }) => turn) ?? values)) } : null;
});

/** Why a run no longer answers what is asked; null if it does. */
export function stale(one: Run): Word | null {
  if (one.base !== origin.value?.remote) return "stale_text";
  if (one !== shownRun.value || !hasModel.value) return null;
  const now = asked.value;
  if (!now) return "stale_change";
  if (askKey(now) === askKey(one.ask)) return null;
  return askKey({ ...now, target: null }) === askKey({ ...one.ask, target: null }) ? "stale_measure" : "stale_change";
}

/** The run whose effects the grid shows. */
const effectRun = computed<Run | null>(() => (ofEachHead(shownRun.value) ? shownRun.value : lastOfEach.value));

/** The change whose effects the grid shows. */
export const effectAbout = computed(() => (arriving.value && arriving.value.base === doc.value?.remote ? { ...arriving.value, target: null } : effectRun.value));

/** (layers * heads) effects on the output, NaN where none is there (yet). */
export const effects = computed<Float32Array | null>(() => {
  const info = doc.value?.info;
  const change = arriving.value?.base === doc.value?.remote ? arriving.value?.change : effectRun.value?.result.change;
  if (!info || !change) return null;
  return Float32Array.from({ length: info.layers.length * info.heads }, (_, n) => {
    const { l, h } = headName(info, headOf(info, n));
    return change[l]?.[h] ?? NaN;
  });
});

/** Show a run on its text, and put its question. */
export async function look(one: Run): Promise<void> {
  const base = one.base === origin.value?.remote ? null : await reopen(one, "base");
  batch(() => {
    if (base) lookAt(placeOfDoc(base));
    state.run.value = one.id;
    state.pane.value = "causes";
    adopt(one);
    if (ofEachHead(one)) showEffects();
  });
}

/** What the grid was asked before a run put its effects there. */
let before: [statistic: string, face: state.Face] | null = null;

function showEffects(): void {
  if (state.statistic.peek() !== "effect") before = [state.statistic.peek(), state.face.peek()];
  state.statistic.value = "effect";
  state.face.value = "values";
}

/** Effects that a run put into the grid stand there beside the causes; elsewhere it is asked what it was asked before. */
export function followEffects(): void {
  let last = state.pane.peek();
  let left = false;
  effect(() => {
    const now = state.pane.value;
    const shown = state.statistic.peek() === "effect";
    if (now === "causes" && last !== now) {
      if (left) showEffects();
      else if (shown) before = null;
      left = false;
    } else if (last === "causes" && now !== last && shown && before) {
      left = true;
      [state.statistic.value, state.face.value] = before;
    }
    last = now;
  });
}

/** Put a run's question to the text in view. */
function adopt({ ask }: Run): void {
  target.value = ask.target;
  state.way.value = ask.kind === "change" ? "these" : ask.kind === "edge" ? "cut" : ask.kind === "groups" ? ask.kind : ask.method as state.Way;
  if (ask.patch_from !== null) patchText.value = ask.patch_from;
  const base = origin.value?.remote;
  if (ask.kind === "change" && base) choices.value = { ...choices.value, [base]: { ablate: ask.ablate, mask: ask.mask, replace: ask.replace } };
  if (!ask.edge) return;
  const place = ask.kind === "edge" ? placeOf(doc.value!.info, ask.edge[0], ask.edge[1]) : at.value;
  if (place) [state.layer.value, state.head.value] = [place.layer, place.head];
  [state.query.value, state.key.value] = [ask.edge.at(-2)!, ask.edge.at(-1)!];
}

/** Run a question again on the text in view. */
export async function again(one: Run): Promise<void> {
  batch(() => {
    if (one !== shownRun.value || !asked.value || stale(one) === "stale_text") adopt(one);
  });
  await go();
}

/** Labels of the tokens that a question speaks of. */
function namesOf(ask: Ask, { info }: Doc): Record<string, string> {
  const places = [...ask.mask, ...ask.replace.map(([place]) => place), ...(ask.edge?.slice(-2) ?? [])];
  return Object.fromEntries(places.map((place) => [place, info.queries.labels[place] ?? ""]));
}

/** Put the question, and show the answer. */
export async function go(): Promise<void> {
  const [base, ask] = [origin.value, asked.value];
  if (!base?.remote || !ask || running.value !== null) return;
  state.pane.value = "causes";
  if (ask.kind === "change") {
    const result = await run({ base: base.remote, ...ask }, `${changeName({ ask, names: namesOf(ask, base) })} · ${base.name}`, base.id);
    if (result?.of) finish(result.of.run, () => { if (placeOfDoc(base) >= 0) lookAt(placeOfDoc(base)); setB(placeOfDoc(result)); });
    return;
  }
  if (doc.value !== base) lookAt(placeOfDoc(base));
  const change: number[][] = [];
  const names = namesOf(ask, base);
  await abortable(async (signal) => {
    for await (const line of backend.value!.study({ base: base.remote!, ...ask }, signal)) {
      if (line.run) finish(line.run, ofEachHead(line.run) ? showEffects : undefined);
      else if (line.change) {
        change[line.layer!] = line.change;
        batch(() => {
          arriving.value = { base: base.remote!, ask, names, change: change.slice() };
          if (doc.value === base) showEffects();
        });
      } else told(line);
    }
  });
  arriving.value = null;
}

function finish(one: Run, also?: () => void): void {
  batch(() => {
    runs.value = [...runs.value.filter((other) => other.base !== one.base || askKey(other.ask) !== askKey(one.ask)), one];
    state.run.value = one.id;
    arriving.value = null;
    also?.();
  });
}

/** Open the trace of a run, or of its text, if it is not open. */
export async function reopen(one: Run, which: "base" | "trace"): Promise<Doc | null> {
  const id = one[which];
  const open = docOf(id);
  if (open || !id) return open ?? null;
  const base = which === "trace" ? await reopen(one, "base") : null;
  const opened = await run({ kept: id }, base ? `${changeName(one)} · ${base.name}` : null, base?.id ?? null, one);
  return opened;
}

/** The runs that the server has kept, or that the file holds. */
export async function fetchRuns(): Promise<void> {
  if (hasModel.value) {
    const kept = await backend.value!.runs();
    if (kept) runs.value = kept;
    else trouble.value = say("lost");
  } else runs.value = start.value.runs ?? [];
  if (shownRun.value?.id === state.run.value) adopt(shownRun.value);
}
