// Cause and effect: put a change and an output, run the model, and see what the change makes of the output.
import { useSignal } from "@preact/signals";
import { changeName, hasHead, signed, targetName, toggled, type Outcome, type Run, type Target } from "../model/ask";
import { cancel, hasModel, outcomes, running, start } from "../model/remote";
import { again, arriving, asked, choose, chosen, go, headHere, look, origin, patchText, pinned, reopen, runs, shownRun, stale, target } from "../model/runs";
import * as state from "../state/state";
import { doc, docOf, docs, lookAt, lookedRow, placeOfDoc, setB, shown } from "../state/store";
import { shortNames } from "../text/naming";
import { undotted } from "../text/shown";
import { plainLabel } from "../trace/parts";
import { number, percent, say, type Word } from "../words";
import { Centre, EmptyCentre, Field, Fill, Menu, Sign } from "./controls";
import { Bars, EachHead, inOrder } from "./effects";
import { Groups } from "./groups";
import { Inked } from "./inked";

const silence = (layer: number, head: number): void => choose({ ablate: toggled(chosen.value.ablate, layer, head) });

function mask(places: number[]): void {
  const { mask, replace } = chosen.value;
  const has = places.every((place) => mask.includes(place));
  choose({
    mask: has ? mask.filter((place) => !places.includes(place)) : [...new Set([...mask, ...places])].sort((a, b) => a - b),
    replace: replace.filter(([place]) => !places.includes(place)),
  });
}

/** False, and said, where there is no model to change. */
function canChange(): boolean {
  if (!hasModel.value) state.status.value = say("offline_keys");
  return hasModel.value;
}

export function toggleHead(): void {
  if (doc.value && canChange()) silence(...headHere());
}

export function toggleToken(): void {
  const places = lookedRow.value === null ? undefined : shown.value?.rows[lookedRow.value]?.tokens;
  if (places && canChange() && start.value.mask) mask(places);
}

/** Cut the pinned edge in the head in view, and see. */
export function cutEdge(): void {
  if (!canChange() || !pinned.value) return;
  state.way.value = "cut";
  void go();
}

export function Causes() {
  const base = origin.value!;
  if (!hasModel.value && !runs.value.length) return <EmptyCentre>{say("offline_keys")}</EmptyCentre>;
  const one = shownRun.value;
  const coming = arriving.value?.base === base.remote ? arriving.value : null;
  return (
    <Centre pane="picture causes">
      <h1>{say("pane_causes")}</h1>
      {hasModel.value ? <Question /> : <p class="quiet small">{say("runs_file")}</p>}
      <div class="answer">
        <div class="shownrun">
          {coming ? <>
            <p class="made"><b class="chip">{changeName(coming)}</b></p>
            <Bars order={inOrder(coming.change)} />
          </> : one ? <Answer one={one} /> : <>
            <p class="quiet hint">{say("causes_how")}</p>
            <Outcomes before={base.remote && outcomes.value[base.remote] || []} after={undefined} labels={base.info.queries.labels} />
          </>}
        </div>
        <RunList />
      </div>
    </Centre>
  );
}

const wayName = (way: state.Way): string => (state.isOfHeads(way) ? say("run_heads", { how: say(`do_${way}`) }) : state.isOfTokens(way) ? say("run_tokens", { how: say(`do_${way}`) }) : say(`do_${way}`));

/** The change and the output, as a sentence of menus. */
function Question() {
  const way = state.way.value;
  const cell = shown.value && pinned.value
    ? say("run_edge", { token: shown.value.rows[shown.value.rowOf[pinned.value[0]]].text, text: shown.value.columns[shown.value.columnOf[pinned.value[1]]].text }) : null;
  return (
    <>
      <form class="row tools question" onSubmit={(event) => { event.preventDefault(); void go(); }}>
        <label>{say("causes_change")} <Menu held={state.way} names={state.WAYS} says={wayName} test="way" /></label>
        {way === "patch" && <Field value={patchText.value} label={say("do_patch")} placeholder={say("do_patch_same", { n: origin.value!.info.queries.tokens.length })} test="patch"
          onText={(text) => { patchText.value = text; }} />}
        {(way === "edge" || way === "cut") && <bdi class={cell ? "chip" : "quiet"}>{cell ? `${way === "cut" ? `${headHere().join(".")}: ` : ""}${cell}` : say("causes_pin")}</bdi>}
        <Measure />
        {/* two elements: if Cancel became Run while it is pressed, it would submit the form */}
        {running.value === null
          ? <button key="run" class="strong" data-test="run" disabled={!asked.value}>{say("causes_run")}</button>
          : <button key="cancel" type="button" data-test="cancel" onClick={() => cancel()}>{say("cancel")}</button>}
        <span class="quiet running" role="status">{running.value}</span>
      </form>
      {way === "these" && <Choices key={origin.value!.id} />}
    </>
  );
}

/** The output that is read. */
function Measure() {
  const wanted = target.value;
  const value = wanted === null ? "" : wanted[0] === "class" ? `class ${wanted[1]}` : String(wanted[0]);
  const typed = value === "word" || value === "similarity";
  const names = ["", ...(start.value.fills ? ["word"] : []), ...(start.value.classes ?? []).map((name) => `class ${name}`), "embedding", "similarity"];
  return (
    <>
      <label>{say("causes_measure")} <Menu value={value} names={names} says={(name) => (name.startsWith("class ") ? say("t_class", { token: name.slice(6) }) : name === "embedding" ? say("t_embedding") : say(`for_${name || "default"}` as Word))} test="measure"
        onPick={(name) => { target.value = !name ? null : name.startsWith("class ") ? ["class", name.slice(6)] : name === "embedding" ? [name] : [name, ""]; }} /></label>
      {typed && <Field value={String(wanted![1])} label={say(`for_${value}` as Word)} test="measure-text" onText={(text) => { target.value = [value, text]; }} />}
    </>
  );
}

/** Heads to silence, tokens to mask or to replace. */
function Choices() {
  const { ablate, mask: masked, replace } = chosen.value;
  const { labels } = origin.value!.info.queries;
  const [l, h] = headHere();
  const isSilent = hasHead(ablate, l, h);
  const held = useSignal(pinned.value?.[0] ?? 0);
  const written = useSignal("");
  const [place, word] = [held.value, written.value];
  const put = (): void => {
    if (!word.trim()) return;
    choose({ mask: masked.filter((at) => at !== place), replace: [...replace.filter(([at]) => at !== place), [place, word.trim()] as [number, string]].sort((a, b) => a[0] - b[0]) });
    written.value = "";
  };
  const silent = !masked.length && !outcomes.value[origin.value!.remote ?? ""]?.length;
  return (
    <dl class="wishes">
      {silent && <dd class="quiet both">{say(start.value.fills ? "causes_mask_one" : "causes_no_outputs")}</dd>}
      <dt>{say("causes_heads")}</dt>
      <dd>
        <button onClick={toggleHead} aria-pressed={isSilent} data-test="silence">{say(isSilent ? "causes_back_head" : "causes_this_head", { head: `${l}.${h}` })}</button>
        {ablate.map(([a, b]) => <button key={`${a}.${b}`} class="on" onClick={() => silence(a, b)}>{a}.{b} ×</button>)}
      </dd>
      <dt>{say("causes_tokens")} <small>{say(start.value.mask ? "causes_press" : "causes_no_mask")}</small></dt>
      <dd class="text" data-test="tokens">
        {labels.map((label, at) => (
          <button key={at} disabled={!start.value.mask} aria-pressed={masked.includes(at)}
            title={String(at)} onClick={() => mask([at])}><bdi>{label}</bdi></button>
        ))}
      </dd>
      <dt>{say("causes_replace")}</dt>
      <dd>
        <Menu value={place} names={[...labels.keys()]} says={(at) => `${at} ${labels[at]}`} aria-label={say("causes_replace")} test="replace-place" onPick={(at) => { held.value = Number(at); }} />
        <span>→</span>
        <Field value={word} label={say("causes_replace")} test="replace-by" onText={(text) => { written.value = text; }} onEnter={put} />
        <button onClick={put} disabled={!word.trim()} data-test="replace">+</button>
        {replace.map(([at, text]) => (
          <button key={at} class="on" onClick={() => choose({ replace: replace.filter(([other]) => other !== at) })}><bdi>{labels[at]}</bdi> → <bdi>{text}</bdi> ×</button>
        ))}
      </dd>
    </dl>
  );
}

/** A run's answer, under the change that made it. */
function Answer({ one }: { one: Run }) {
  const why = stale(one);
  const base = docOf(one.base);
  const { result } = one;
  const labels = base?.info.queries.labels ?? [];
  return (
    <>
      <p class="row made" data-test="made"><b class={`chip${why ? " stale" : ""}`}>{changeName(one)}</b> {why && <Stale one={one} why={why} />}</p>
      <div class={why ? "old" : ""}>
        {one.ask.kind === "heads" ? <EachHead run={one} /> : one.ask.kind === "groups" ? <Groups run={one} /> : one.ask.kind === "tokens" ? <Attribution one={one} /> : <>
          {one.target && <h2 class="headline">{beforeAfter(one.target, one)}</h2>}
          <Outcomes before={result.was} after={result.now} labels={labels} />
          {result.shift && base && <>
            <h3>{say("shift_title")}</h3>
            <Inked info={base.info} values={result.shift} sign={false} test="shift" />
            <p class="quiet small">{say("causes_state", { n: percent(result.moved!) })}</p>
          </>}
          {one.trace && <p><button data-test="compare" onClick={() => void compare(one)}>{say("causes_later")} (3)</button></p>}
        </>}
      </div>
    </>
  );
}

/** The text and the changed run side by side, opened again if need be. */
async function compare(one: Run): Promise<void> {
  const [base, after] = [await reopen(one, "base"), await reopen(one, "trace")];
  if (!base || !after) return;
  lookAt(placeOfDoc(base));
  setB(placeOfDoc(after));
  state.pane.value = "compare";
}

function beforeAfter(read: Target, { result: { before, after, before_aside, after_aside } }: Run): string {
  const aside = read.aside && before_aside !== undefined && after_aside !== undefined ? ` · ${say(`aside_${read.aside}`)} ${number(before_aside)} → ${number(after_aside)}` : "";
  return `${targetName(read)}: ${number(before!)} → ${number(after!)} (${signed(after! - before!)})${aside}`;
}

/** Why a run does not answer: its text is named as on its tab, where it is open. */
const sayWhy = ({ base, text }: Run, why: Word): string => say(why, { text: shortNames()[docs.value.findIndex(({ remote }) => remote === base)] ?? text });

/** Why a run no longer answers the question, and a way to run it again. */
function Stale({ one, why }: { one: Run; why: Word }) {
  return (
    <span class="row">
      <em class="why" title={one.text}>{say("stale")}: {sayWhy(one, why)}</em>
      {hasModel.value && <button data-test="again" disabled={running.value !== null} onClick={() => void again(one)}>↻ {say("again")}</button>}
    </span>
  );
}

/** What each token adds to the output. */
function Attribution({ one }: { one: Run }) {
  const base = docOf(one.base);
  const { scores, total, rest, gap } = one.result;
  const [{ head: best }] = inOrder([scores]);
  const sum = scores.reduce((all, value) => all + value, 0);
  return (
    <>
      <h2 class="headline">{say("tok_headline", { token: base ? undotted(base.info.queries.labels[best]) : String(best), share: signed(scores[best]), what: targetName(one.target!), total: number(total) })}</h2>
      {base && <Inked info={base.info} values={scores} sign test="ink" />}
      <p class="small" data-test="sum">{say("tok_sum", {
        sum: number(sum), rest: number(rest), gap: number(gap), total: number(total) })}</p>
      <p class="quiet small">{say("tok_ink")}</p>
    </>
  );
}

function strongest(change: number[][]): string {
  const [first] = inOrder(change);
  return `${first.layer}.${first.head} ${signed(first.value)}`;
}

/** A run's number. */
const brief = ({ ask, result, target: read }: Run): string =>
  ask.kind === "heads" ? strongest(result.change) : ask.kind === "tokens" ? number(result.total) : ask.kind === "groups" ? number(result.groups![0].value) : read ? signed(result.after! - result.before!) : "";

/** All runs, the last first. */
function RunList() {
  const listed = [...runs.value].reverse();
  return (
    <section class="runs" aria-label={say("runs")}>
      <h3 class="row spread"><span>{say("runs")}</span> {hasModel.value && <small>{say("runs_kept")}</small>}</h3>
      <ol data-test="runs">
        {listed.map((one) => {
          const elsewhere = one.base !== origin.value?.remote;
          return (
            <li key={one.id}>
              <button aria-pressed={one === shownRun.value} data-run={one.id} onClick={() => void look(one)}>
                <bdi class={elsewhere ? "stale" : ""}>{changeName(one)}</bdi> <b>{brief(one)}</b>
              </button>
              {elsewhere && <span class="row"><em class="why small" title={one.text}>{sayWhy(one, "stale_text")}</em>
                {hasModel.value && <Sign says={say("again")} disabled={running.value !== null} onClick={() => void again(one)}>↻</Sign>}</span>}
            </li>
          );
        })}
        {!listed.length && <li class="quiet small">{say("runs_none")}</li>}
      </ol>
    </section>
  );
}

const named = (outcome: Outcome): string => `${outcome.what}/${outcome.place}`;

/** The model's predictions, before on the left and after on the right. */
function Outcomes({ before, after, labels }: { before: Outcome[]; after: Outcome[] | undefined; labels: string[] }) {
  const all = new Map([...(after ?? []), ...before].map((outcome) => [named(outcome), outcome]));
  const places = [...all.values()].sort((a, b) => (a.place ?? -1) - (b.place ?? -1));
  if (!places.length) return <div class="outcomes" />;
  return (
    <div class="outcomes">
      <h2>{say("causes_before")}</h2><h2>{after ? say("causes_after") : ""}</h2>
      {places.map((outcome) => {
        const [was, is] = [before, after ?? []].map((list) => list.find((other) => named(other) === named(outcome)));
        const stood = outcome.place === null || labels[outcome.place] === undefined || labels[outcome.place] === outcome.token ? null : undotted(labels[outcome.place]);
        return <>
          <h3>
            {outcome.place === null ? outcome.what : say("causes_place", { what: outcome.what, place: outcome.place })}
            {stood !== null && <small> {say("causes_stood", { token: stood })}</small>}
          </h3>
          {was ? <Ranking when={say("causes_before")} outcome={was} against={undefined} /> : <p class="quiet">{say("causes_not_masked")}</p>}
          {is ? <Ranking when={say("causes_after")} outcome={is} against={was} /> : <p />}
        </>;
      })}
    </div>
  );
}

/** The likeliest choices, and how their probabilities changed. */
function Ranking({ when, outcome, against }: { when: string; outcome: Outcome; against: Outcome | undefined }) {
  return (
    <ol class="ranked" data-when={when}>
      {outcome.top.map(({ label, share }) => {
        const was = against?.top.find((other) => other.label === label);
        const change = was ? signed(share - was.share) : say("causes_new");
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
