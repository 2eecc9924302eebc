// The selected head: lines and matrix, their options, and the steps of a cell below.
import { useSignal } from "@preact/signals";
import { remarks, sentencesOf } from "../drawing/caption";
import { count, number, percent, say } from "../words";
import * as state from "../state/state";
import { computing, current, lookedNumbers, progress, rowIn, wanted } from "../drawing/pictures";
import { gather, mean, memberColour, members, overlaid, takeLayer, title } from "../heads/several";
import { overlaidRows } from "../drawing/overlay";
import { at, doc, headLabel, headName, lookedColumn, lookedRow, shown } from "../state/store";
import { Centre, Field, Menu, Range, Sign, Switch } from "./controls";
import { Lines, linesCut } from "./lines";
import { Lost } from "./lost";
import { Legend } from "./legend";
import { zooming } from "./map";
import { cellsInPixel, Matrix, numbersFrom } from "./matrix";
import { NumberTable, tableOpen } from "./table";
import { changeName } from "../model/ask";
import { choosePassage } from "../heads/asking";
import { maskOf } from "../text/masking";
import { direction } from "../text/prose";
import { inShell } from "../text/python";
import { wordAt, type Label } from "../text/shown";
import { largestPlaces } from "../trace/strongest";
import type { Axis } from "../trace/trace";
import { Text } from "./name";
import { ARC } from "./ribbon";
import { short } from "./slots";
import { TextNote, TextTools, TextView } from "./text";
import { ToolsButton, toolsOpen } from "./tools";

/** Heads together that are named. */
const MOST = 8;

export function HeadPane() {
  const { info, of } = doc.value!;
  const words = shown.value!;
  const hasPair = info.queries.segments.includes(1);
  const picture = current.value;
  const mode = state.mode.value;
  const [hasLines, hasMatrix] = ["lines", "matrix"].map((name) => mode === name || mode === "both");
  const badges = [of && changeName(of.run), ...remarks(), mean.value && say("mean_note")].filter(Boolean);
  return (
    <Centre pane="picture">
      <div class="row heading">
        <h1 data-test="head">{title()}</h1>
        <span class="quiet small">{say("picture_says", headName(info, at.value))}{direction(words.columns) === "rtl" && ` · ${say("picture_rtl")}`}</span>
        <Finder />
        <ToolsButton />
      </div>
      {toolsOpen.value && <div class="row tools">
        <Switch held={state.mode} names={state.MODES} says={(name) => say(`mode_${name}`)} test="mode" />
        {mode === "text" ? <TextTools /> : mode !== "matrix" && (
          <label title={say("mass_hint")}>{say("mass")} <Range held={state.mass} least={0.05} test="mass" /> <b class="figure">{percent(state.mass.value)}</b></label>
        )}
        {hasPair && <Menu value={state.filter.value} aria-label={say("filter")} names={state.FILTERS} says={(name) => say(`filter_${name}`)} test="filter"
          onPick={(name) => { state.filter.value = name as state.Filter; state.box.value = null; }} />}
        <Tick on={!state.special.value} says={say("hide_special")} test="special" onTick={() => state.toggle(state.special)} />
        <Tick on={state.merged.value} says={say("merge")} test="words" onTick={() => state.toggle(state.merged)} />
        {info.hasNorms && <Tick on={state.normed.value} says={say("normed")} test="normed" title={say("normed_hint")} onTick={() => state.flip(state.normed)} />}
        <button data-test="mean-layer" onClick={takeLayer}>{say("mean_layer", { l: info.layerNumbers[at.value.layer] })}</button>
        {hasMatrix && <span class="row">
          <Sign says={say("zoom_in")} onClick={() => zooming.by(0.6)}>+</Sign><Sign says={say("zoom_out")} onClick={() => zooming.by(1 / 0.6)}>−</Sign>
          <Sign says={say("zoom_all")} onClick={() => { state.box.value = null; }}>0</Sign>
        </span>}
        <button aria-pressed={tableOpen.value} data-test="table" onClick={() => state.flip(tableOpen)}>{say("table")} <kbd>t</kbd></button>
      </div>}
      <Together />
      <div class={`views ${mode}`}>
        {mode === "text" && <TextView />}
        {hasMatrix && <div class="view">
          <Matrix picture={picture} wanted={wanted.value} rows={words.rows} columns={words.columns}
            name={`${say("mode_matrix")}: ${title()}`} />
        </div>}
        {hasLines && <div class="view lined">
          <Lines />
        </div>}
        {tableOpen.value && <NumberTable />}
        {picture && picture.every > 1 && mode !== "lines" && <p class="sampled">{say("sampled", { n: count(picture.every) })}</p>}
        <Lost />
      </div>
      <div class="badges">{badges.map((badge) => <span key={String(badge)} class="badge">{badge}</span>)}</div>
      <div class="row spread status">
        {mode === "text" ? <TextNote /> : <Status />}
        <span class="row scales">
          <Progress />
          {/* it keeps its room: were it to come and go, the cells' size would follow, and it them */}
          {hasMatrix && <span class="quiet small" style={{ visibility: numbersFrom.value > 0 ? "" : "hidden" }}>{say("text_numbers", { n: short(numbersFrom.value || 0.1) })}</span>}
          {picture && <Legend picture={picture} />}
        </span>
      </div>
    </Centre>
  );
}

const Tick = ({ on, says, test, title, onTick }: { on: boolean; says: string; test: string; title?: string; onTick: () => void }) => (
  <label title={title}><input type="checkbox" checked={on} data-test={test} onChange={onTick} /> {says}</label>
);

/** Below a printed figure: what it shows, from which numbers on, how it counts, and how it is made again. */
export function Caption() {
  const [picture, command] = [current.value, inShell()];
  return picture && <p class="caption small">{[
    // the command has the text
    ...sentencesOf(picture).slice(0, command ? -1 : undefined), say("figure_from", { arcs: short(ARC), n: short(numbersFrom.value) }),
    command && say("figure_made", { command }),
  ].filter(Boolean).join(" ")}</p>;
}

/** The heads that are looked at together, each with its weight at the cell that is looked at. */
function Together() {
  const info = doc.value!.info;
  const [r, c] = [lookedRow.value, lookedColumn.value];
  if (!members.value.length) return null;
  const weights = r === null || c === null ? [] : overlaidRows.value.map((rowAt) => rowAt(r)?.[c]);
  const whole = members.value.length > MOST;
  return (
    <div class="row together">
      <Switch held={state.blend} names={state.BLENDS} says={(name) => say(`blend_${name}`)} test="blend" />
      {members.value.slice(0, MOST).map((member, n) => (
        <button key={member} class="member" title={say("member_drop", { head: headLabel(info, member) })} data-head={headLabel(info, member)} data-weight={weights[n]} onClick={() => gather(member)}>
          {overlaid.value.length > 0 && <i style={{ background: memberColour(n) }} />}<b>{headLabel(info, member)}</b> {overlaid.value.length > 0 && <span class="figure">{weights[n] === undefined ? "" : short(weights[n]!)}</span>} ×
        </button>
      ))}
      {whole && <span class="quiet">+{count(members.value.length - MOST)}</span>}
      {overlaid.value.length > 0 && state.mode.value !== "lines" && <span class="quiet small">{say("over_note", { head: headLabel(info, at.value.n) })}</span>}
      <Sign class="plain" says={say("together_clear")} onClick={() => { state.several.value = state.NONE; }}>×</Sign>
    </div>
  );
}

function Progress() {
  return computing.value && progress.value > 0 ? <span class="quiet">{percent(progress.value)}</span> : null;
}

/** The hovered cell, always on the same line. */
function Status() {
  const words = shown.value!;
  const [r, c] = [lookedRow.value, lookedColumn.value];
  const picture = current.value;
  const value = lookedNumbers.value?.[c ?? -1] ?? null;
  const hidden = value !== null && maskOf(wanted.value!)?.(words.rows[r!], words.columns[c!], value);
  const how = [
    `${say("queries")} ↓ ${say("keys")} →`, state.mode.value !== "lines" && cellsInPixel.value > 1.05 && say("pooled", { n: number(cellsInPixel.value, 1) }),
    linesCut.value && state.mode.value !== "matrix" && say("lines_cut", { n: count(linesCut.value[0]), all: count(linesCut.value[1]) }),
    picture?.key.startsWith("coarse") && say("coarse", { n: count(picture.rows * picture.columns) }),
  ].filter(Boolean).join(" · ");
  return (
    <span class="under" aria-live="polite">
      {r !== null && words.rows[r] && <><Text of={words.rows[r]} /><i>{r}</i></>}
      {c !== null && words.columns[c] && <><span>→</span><Text of={words.columns[c]} /><i>{c}</i></>}
      {value !== null && <b data-test="value">{hidden ? say("cell_masked") : number(value)}</b>}
      {r === null && c === null && <span class="quiet" title={how}>{how}</span>}
    </span>
  );
}

/** Open the box that finds words. */
export function find(): void {
  const here = state.pane.value === "head" && !state.chain.value;
  state.pane.value = "head";
  state.chain.value = false;
  const focus = (): void => document.querySelector<HTMLInputElement>("[data-test=find]")?.select();
  if (here) focus();
  else setTimeout(focus);
}

/** Pin the word that a row looks at most, so that the grid has a question and `e` an answer. */
function pinStrongest(r: number): void {
  const [picture, words] = [current.value, shown.value!];
  if (!picture?.full) return;
  const [best] = largestPlaces(rowIn(picture, r).map((x, c) => (words.columns[c]?.special ? -1 : x)), 1);
  if (best === undefined || !words.columns[best]) return;
  state.key.value = words.columns[best].tokens[0];
  state.statistic.value = "weight";
}

/** Search for a token (key /): it is pinned and scrolled into view. */
function Finder() {
  const text = useSignal("");
  const turn = useSignal(0);
  const words = shown.value!;
  const wantedText = text.value.toLocaleLowerCase();
  const { queries, keys } = doc.value!.info;
  /** A piece is found by its whole word. */
  const search = (labels: Label[], axis: Axis): number[] =>
    wantedText ? labels.flatMap(({ tokens }, n) => (wordAt(axis, tokens[0], true).toLocaleLowerCase().includes(wantedText) ? [n] : [])) : [];
  const [matches, columns] = [search(words.rows, queries), search(words.columns, keys)];
  const all = (places: number[], labels: Label[]): number[] => places.flatMap((n) => labels[n].tokens);
  const go = (by: number): void => {
    if (!matches.length) return;
    turn.value = (turn.value + by + matches.length) % matches.length;
    const r = matches[turn.value];
    state.query.value = words.rows[r].tokens[0];
    if (state.key.value === null) pinStrongest(r);
    const box = state.box.value;
    if (box) {
      if (r < box.top || r > box.top + box.span - 1) state.box.value = { ...box, top: Math.max(0, r - box.span / 2), left: Math.max(0, r - box.span / 2) };
    }
  };
  return (
    <span class={`finder row${toolsOpen.value || wantedText ? "" : " tucked"}`}>
      <span class="quiet small">{wantedText ? (matches.length ? say("find_count", { n: Math.max(0, turn.value) + 1, all: matches.length }) : say("find_none", { text: text.value })) : ""}</span>
      {matches.length > 0 && <>
        <button type="button" onClick={() => choosePassage("row", all(matches, words.rows))}>{say("find_queries")}</button>
        {columns.length > 0 && <button type="button" data-test="find-keys" onClick={() => choosePassage("column", all(columns, words.columns))}>{say("find_keys")}</button>}
      </>}
      <Field type="search" placeholder={`/ ${say("find")}`} label={say("find")} value={text.value} test="find"
        onText={(typed) => { text.value = typed; turn.value = -1; }} onEnter={(event) => go(event.shiftKey ? -1 : 1)} onEscape={() => { text.value = ""; }} />
    </span>
  );
}
