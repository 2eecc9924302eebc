// Cause and effect: silence heads, mask tokens, run again, and see what changes.
import { computed, signal } from "@preact/signals";
import { number, percent, say } from "../words";
import * as state from "../state";
import { at, doc, docs, lookAt, lookedRow, otherDoc, placeOfDoc, shown, type Changes, type Doc } from "../store";
import { moved, outcomes, run, running, start, type Outcome } from "../remote";
import { plainLabel } from "../trace/trace";
import { Fill } from "./bar";
import { EmptyCentre } from "./centre";
import { Changed } from "./compare";

const NOTHING: Changes = { heads: [], tokens: [] };
/** Requested changes, by the trace that they apply to. */
const wishes = signal<Record<number, Changes>>({});

/** The trace to change: for a changed run, its original. */
const origin = computed<Doc | null>(() => {
  const now = doc.value;
  return docs.value.find((candidate) => candidate.id === now?.of?.origin) ?? now;
});
const wish = computed<Changes>(() => (origin.value && wishes.value[origin.value.id]) ?? NOTHING);
/** The changed run that is selected or compared with. */
const changedRun = computed<Doc | null>(() =>
  [doc.value, otherDoc.value].find((candidate) => candidate?.of && candidate.of.origin === origin.value?.id) ?? null,
);

function ask(next: Changes): void {
  if (origin.value) wishes.value = { ...wishes.value, [origin.value.id]: next };
}

const isSilent = (layer: number, head: number): boolean => wish.value.heads.some(([l, h]) => l === layer && h === head);

function silence(layer: number, head: number): void {
  const { heads, tokens } = wish.value;
  ask({ tokens, heads: isSilent(layer, head) ? heads.filter(([l, h]) => l !== layer || h !== head) : [...heads, [layer, head]] });
}

function mask(places: number[]): void {
  const { heads, tokens } = wish.value;
  const has = places.every((place) => tokens.includes(place));
  ask({ heads, tokens: has ? tokens.filter((place) => !places.includes(place)) : [...new Set([...tokens, ...places])].sort((a, b) => a - b) });
}

/** The chosen head's numbers in the model. */
function chosen(): [number, number] {
  const { layerNumbers, headNumbers } = doc.value!.info;
  return [layerNumbers[at.value.layer], headNumbers[at.value.layer][at.value.head]];
}

export function toggleHead(): void {
  if (!doc.value || start.value.home !== "server") return;
  silence(...chosen());
  state.pane.value = "causes";
}

export function toggleToken(): void {
  const places = lookedRow.value === null ? undefined : shown.value?.rows[lookedRow.value]?.tokens;
  if (!places || start.value.home !== "server" || !start.value.mask) return;
  mask(places);
  state.pane.value = "causes";
}

async function go(): Promise<void> {
  const [before, changes] = [origin.value!, wish.value];
  const parts = [
    changes.heads.length ? `✕ ${changes.heads.map((cell) => cell.join(".")).join(" ")}` : "",
    changes.tokens.length ? `${start.value.mask} ${changes.tokens.map((place) => before.info.queries.labels[place]).join(" ")}` : "",
  ].filter(Boolean);
  const result = await run(
    { base: before.remote!, ablate: changes.heads, mask: changes.tokens }, `${parts.join(" · ")} · ${before.name}`, { origin: before.id, changes },
  );
  if (!result) return;
  lookAt(placeOfDoc(before));
  state.other.value = placeOfDoc(result);
}

export function Causes() {
  const base = origin.value;
  if (!base) return null;
  if (start.value.home !== "server") {
    return <EmptyCentre>{say("causes_none")}</EmptyCentre>;
  }
  const changes = wish.value;
  const [l, h] = chosen();
  const labels = base.info.queries.labels;
  const after = changedRun.value;
  const shift = after?.remote ? moved.value[after.remote] : undefined;
  const listed = (trace: Doc | null): Outcome[] | undefined => (trace?.remote ? outcomes.value[trace.remote] : undefined);
  return (
    <main class="centre" id="head">
      <section class="panel picture causes">
        <h1>{say("pane_causes")}</h1>
        <p class="quiet">{say("causes_how")}</p>
        <dl class="wishes">
          <dt>{say("causes_heads")}</dt>
          <dd>
            <button onClick={toggleHead} aria-pressed={isSilent(l, h)} data-test="silence">{say(isSilent(l, h) ? "causes_back_head" : "causes_this_head", { head: `${l}.${h}` })}</button>
            {changes.heads.map(([a, b]) => <button key={`${a}.${b}`} class="on" onClick={() => silence(a, b)}>{a}.{b} ×</button>)}
          </dd>
          <dt>{say("causes_tokens")} <small>{say(start.value.mask ? "causes_press" : "causes_no_mask")}</small></dt>
          <dd class="text" data-test="tokens">
            {labels.map((label, place) => (
              <button key={place} disabled={!start.value.mask} class={changes.tokens.includes(place) ? "on" : ""} aria-pressed={changes.tokens.includes(place)}
                title={String(place)} onClick={() => mask([place])}><bdi>{label}</bdi></button>
            ))}
          </dd>
        </dl>
        <div class="row">
          <button class="strong" data-test="run" disabled={running.value !== null || (!changes.heads.length && !changes.tokens.length)} onClick={() => void go()}>{say("causes_run")}</button>
          <span class="quiet" role="status">{running.value}</span>
        </div>
        <Outcomes before={listed(base) ?? []} after={listed(after)} labels={labels} />
        {listed(base)?.length === 0 && !listed(after)?.length && <p class="quiet">{say(start.value.fills ? "causes_mask_one" : "causes_no_outputs")}</p>}
        {shift !== undefined && <p>{say("causes_state", { n: percent(shift) })}</p>}
        {after && <p><button onClick={() => { state.pane.value = "compare"; }}>{say("causes_later")} (2)</button></p>}
      </section>
      {after && otherDoc.value && (doc.value === base || otherDoc.value === base) && <Changed a={doc.value!} b={otherDoc.value} />}
    </main>
  );
}

const named = (outcome: Outcome): string => `${outcome.what}/${outcome.place}`;

/** The model's predictions, before on the left and after on the right. */
function Outcomes({ before, after, labels }: { before: Outcome[]; after: Outcome[] | undefined; labels: string[] }) {
  const all = new Map([...(after ?? []), ...before].map((outcome) => [named(outcome), outcome]));
  const places = [...all.values()].sort((a, b) => (a.place ?? -1) - (b.place ?? -1));
  if (!places.length) return <div class="outcomes" data-test="outcomes" />;
  return (
    <div class="outcomes" data-test="outcomes">
      <h2>{say("causes_before")}</h2><h2>{after ? say("causes_after") : ""}</h2>
      {places.map((outcome) => {
        const [was, is] = [before, after ?? []].map((list) => list.find((other) => named(other) === named(outcome)));
        const stood = outcome.place === null || labels[outcome.place] === outcome.token ? null : labels[outcome.place].replace(/^·/u, "");
        return [
          <h3 key={named(outcome)}>
            {outcome.place === null ? outcome.what : say("causes_place", { what: outcome.what, place: outcome.place })}
            {stood !== null && <small class="quiet"> {say("causes_stood", { token: stood })}</small>}
          </h3>,
          was ? <Choices key={`${named(outcome)} before`} when={say("causes_before")} outcome={was} against={undefined} /> : <p key={`${named(outcome)} before`} class="quiet">{say("causes_not_masked")}</p>,
          is ? <Choices key={`${named(outcome)} after`} when={say("causes_after")} outcome={is} against={was} /> : <p key={`${named(outcome)} after`} />,
        ];
      })}
    </div>
  );
}

/** The likeliest choices, and how their probabilities changed. */
function Choices({ when, outcome, against }: { when: string; outcome: Outcome; against: Outcome | undefined }) {
  return (
    <ol class="ranked" data-when={when}>
      {outcome.top.map(({ label, share }) => {
        const was = against?.top.find((other) => other.label === label);
        const change = was ? `${share >= was.share ? "+" : "−"}${Math.abs(share - was.share).toFixed(3)}` : say("causes_new");
        return (
          <li key={label}>
            <bdi title={label}>{outcome.place === null ? label : plainLabel(label, label.startsWith("##"))}</bdi><span class="bar"><Fill share={share} /></span>
            <b>{number(share)}</b><em>{against ? change : ""}</em>
          </li>
        );
      })}
    </ol>
  );
}
