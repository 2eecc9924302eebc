// Cause and effect: silence heads, mask tokens, run again, and see what changes.
import { useSignal } from "@preact/signals";
import { percent, say, number } from "../words";
import * as state from "../state";
import { at, doc, docs, lookedRow, otherDoc, shown } from "../store";
import { moved, outcomes, run, running, start, type Outcome } from "../remote";
import { Changed } from "./compare";
import { signal } from "@preact/signals";

/** The changes that are asked for, for the trace that is looked at. */
export const silenced = signal<[number, number][]>([]);
export const masked = signal<number[]>([]);

export function toggleHead(): void {
  const info = doc.value?.info;
  if (!info || start.value.home !== "server") return;
  const [l, h] = [info.layerNumbers[at.value.layer], info.headNumbers[at.value.layer][at.value.head]];
  const has = silenced.value.some(([a, b]) => a === l && b === h);
  silenced.value = has ? silenced.value.filter(([a, b]) => a !== l || b !== h) : [...silenced.value, [l, h]];
  state.pane.value = "causes";
}

export function toggleToken(): void {
  const r = lookedRow.value;
  const place = r === null ? undefined : shown.value?.rows[r]?.tokens;
  if (!place || start.value.home !== "server" || !start.value.mask) return;
  const has = place.every((token) => masked.value.includes(token));
  masked.value = has ? masked.value.filter((token) => !place.includes(token)) : [...masked.value, ...place];
  state.pane.value = "causes";
}

export function Causes() {
  const info = doc.value?.info;
  const base = useSignal<string | null>(null);
  if (!info) return null;
  if (start.value.home !== "server") {
    return <main class="centre" id="head"><section class="panel"><p class="quiet hint">{say("causes_none")}</p></section></main>;
  }
  const [l, h] = [info.layerNumbers[at.value.layer], info.headNumbers[at.value.layer][at.value.head]];
  const silent = silenced.value.some(([a, b]) => a === l && b === h);
  const r = lookedRow.value;
  const token = r === null ? undefined : shown.value?.rows[r];
  const hidden = token?.tokens.every((place) => masked.value.includes(place));
  const before = doc.value!.remote ? outcomes.value[doc.value!.remote] : undefined;
  const after = otherDoc.value?.remote ? outcomes.value[otherDoc.value.remote] : undefined;
  const shift = otherDoc.value?.remote ? moved.value[otherDoc.value.remote] : undefined;
  const go = async (): Promise<void> => {
    base.value = doc.value!.remote;
    const parts = [
      silenced.value.length ? `✕ ${silenced.value.map((one) => one.join(".")).join(" ")}` : "",
      masked.value.length ? `${start.value.mask} ${masked.value.map((place) => info.queries.labels[place]).join(" ")}` : "",
    ].filter(Boolean);
    const found = await run({ base: doc.value!.remote!, ablate: silenced.value, mask: masked.value }, `${parts.join(" · ")} · ${doc.value!.name}`);
    if (found) state.other.value = docs.value.indexOf(found);
  };
  return (
    <main class="centre" id="head">
      <section class="panel picture causes">
        <h1>{say("pane_causes")}</h1>
        <div class="row">
          <button onClick={toggleHead} data-test="silence">{say(silent ? "causes_back_head" : "causes_this_head", { head: `${l}.${h}` })}</button>
          <button disabled={!token || !start.value.mask} onClick={toggleToken} data-test="mask">
            {start.value.mask ? say(hidden ? "causes_back_token" : "causes_this_token", { token: token?.text ?? "…" }) : say("causes_no_mask")}
          </button>
        </div>
        <dl class="chosen">
          <dt>{say("causes_heads")}</dt>
          <dd>{silenced.value.length ? silenced.value.map(([a, b]) => <button key={`${a}.${b}`} onClick={() => { silenced.value = silenced.value.filter(([x, y]) => x !== a || y !== b); }}>{a}.{b} ×</button>) : say("causes_none_yet")}</dd>
          <dt>{say("causes_tokens")}</dt>
          <dd>{masked.value.length ? masked.value.map((place) => <button key={place} onClick={() => { masked.value = masked.value.filter((other) => other !== place); }}><bdi>{info.queries.labels[place]}</bdi> ×</button>) : say("causes_none_yet")}</dd>
        </dl>
        <div class="row">
          <button class="strong" data-test="run" disabled={running.value !== null || (!silenced.value.length && !masked.value.length)} onClick={() => void go()}>{say("causes_run")}</button>
          <span class="quiet" role="status">{running.value}</span>
        </div>
        <div class="outcomes" data-test="outcomes">
          <OutcomeList title={say("causes_before")} list={before} against={undefined} />
          <OutcomeList title={say("causes_after")} list={after} against={before} />
        </div>
        {before && before.length === 0 && <p class="quiet">{say("causes_no_outputs")}</p>}
        {shift !== undefined && <p>{say("causes_state", { n: percent(shift) })}</p>}
        {after && <p class="quiet">{say("causes_later")}</p>}
      </section>
      {otherDoc.value && after && <Changed a={doc.value!} b={otherDoc.value} />}
    </main>
  );
}

function OutcomeList({ title, list, against }: { title: string; list: Outcome[] | undefined; against: Outcome[] | undefined }) {
  if (!list) return <div />;
  return (
    <div>
      <h2>{title}</h2>
      {list.map((one) => {
        const before = against?.find((other) => other.what === one.what && other.place === one.place);
        return (
          <div key={`${one.what}/${one.place}`}>
            <h3>{one.place === null ? say("causes_labels", { what: one.what }) : say("causes_prediction", { what: one.what, place: one.place, token: one.token ?? "" })}</h3>
            <ol class="ranked">
              {one.top.map(({ label, share }) => {
                const was = before?.top.find((other) => other.label === label);
                return (
                  <li key={label}>
                    <bdi>{label}</bdi><span class="bar"><i style={{ width: `${100 * share}%` }} /></span>
                    <b>{number(share)}{before ? <em>{was ? ` ${share >= was.share ? "+" : "−"}${number(Math.abs(share - was.share))}` : " ↑"}</em> : null}</b>
                  </li>
                );
              })}
            </ol>
          </div>
        );
      })}
    </div>
  );
}
