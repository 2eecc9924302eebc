// A head's page: its label as a sentence with evidence, its examples, how far it looks, its rank, its syntax, its likes.
import { count, rounded } from "../../words/numbers";
import { headLabel, type Field, type Head, type Label, type Spoken, type Survey } from "../data";
import { groupOf, share, titleOf, tokenOf } from "../kinds";
import { spoken } from "../../words/speech";
import { say, translated } from "../words";
import { called } from "../numbers";
import { HeadBar } from "./chip";
import { HeadEffect } from "./effects";
import { Lines } from "./lines";
import { Places, Ranks } from "./ranks";
import { Relations } from "./relations";
import { Score } from "./score";
import { Distances } from "./shapes";
import { Written } from "./writes";

export function HeadPage({ survey, head }: { survey: Survey; head: Head }) {
  const { cell } = head;
  const label = survey.labels?.[cell] ?? null;
  return (
    <main class={`head g-${label ? groupOf(label) : "plain"}`} data-test="page" data-cell={cell}>
      <Verdict survey={survey} head={head} label={label} />
      <div class="sides">
        <div class="long">
          <section>{head.lines?.length ? <Lines lines={head.lines} wanted={survey.run.examples} /> : <p class="quiet">{say("no_examples")}</p>}</section>
          <Relations survey={survey} head={head} />
        </div>
        <div class="short">
          <Places survey={survey} cell={cell} />
          {head.distances && survey.middle && <Distances values={head.distances} middle={survey.named.length > 1 ? survey.middle : []} />}
          <Ranks survey={survey} cell={cell} />
          <HeadEffect survey={survey} cell={cell} />
          <Alike survey={survey} cell={cell} />
        </div>
      </div>
      <Numbers survey={survey} cell={cell} />
      <p class="quiet small">{say("honest")}</p>
    </main>
  );
}

/** Reservations. */
const Note = ({ says }: { says: Spoken }) => <span data-test="note">{says[spoken.value]}</span>;

/** The label as a sentence, and what speaks for and against it. */
function Verdict({ survey, head, label }: { survey: Survey; head: Head; label: Label | null }) {
  const { cell } = head;
  return (
    <section class="verdict">
      <span class="name" data-test="head">{headLabel(survey, cell)}</span>
      <div>
        <h1 data-test="title">{label ? titleOf(label) : say("head", { head: headLabel(survey, cell) })}</h1>
        {!label && <p class="quiet">{say("no_labels")}</p>}
        {label && (label.score === null ? <p>{label.note ? <Note says={label.note} /> : say("group_none_key")}</p> : <Evidence label={label} />)}
        <Written of={head.writes} />
        {label?.special != null && <p data-test="beside">{say("rests", { special: share(label.special), first: share(label.first), token: tokenOf("first"), sep: share(label.sep), end: tokenOf("sep") })}{label.stop !== null && say("rests_stop", { stop: share(label.stop) })}{say("stop")}</p>}
        {label && label.score !== null && <p class="quiet small">{say("held_out")}{label.stable !== null && <> {say(label.stable === label.clauses ? "stable_all" : label.stable ? "stable" : "stable_none", { n: label.stable, of: label.clauses })}</>}{label.note && <> <Note says={label.note} /></>}</p>}
      </div>
      {label && label.score !== null && (
        <figure><Score of={label} axis /><figcaption class="pre">{say("figure_key")}</figcaption></figure>
      )}
    </section>
  );
}

function Evidence({ label }: { label: Label }) {
  const bits = (value: number | null): string => (value ?? 0).toFixed(1);
  return (
    <>
      <p class="evidence" data-test="evidence">
        <b>{share(label.score)}</b>{say("evidence", { n: count(label.count ?? 0) })}
        {label.low !== null && <>{say("also")}<span class="quiet">{say("interval", { low: share(label.low), high: share(label.high) })}</span></>}
        {label.baseline !== null && <>{say("also")}{say("by_chance", { share: share(label.baseline) })}</>}{say("stop")}
        {label.looks && <>{say("looks", { what: label.looks[spoken.value], share: share(label.looksShare), chance: share(label.looksChance) })}{say("stop")}</>}
      </p>
      {label.bits !== null && (
        <p class={label.part ? "doubt" : "quiet"} data-test="gain">
          {say("bits", { bits: bits(label.bits), offset: bits(label.offsetBits) })}
          {label.accuracy !== null && <> {say("accuracy", { share: share(label.accuracy), chance: share(label.accuracyChance) })}</>}
        </p>
      )}
    </>
  );
}

function Alike({ survey, cell }: { survey: Survey; cell: number }) {
  const alike = survey.nearest?.[cell];
  if (survey.named.length < 2) return null;
  if (!survey.nearest) return <section><h2>{say("heads_alike")}</h2><p class="quiet small">{say("no_alike")}</p></section>;
  if (!alike?.length) return null;
  return (
    <section>
      <h2>{say("heads_alike")}</h2>
      <table class="table alike" data-test="alike"><tbody>{alike.map(([other, distance]) => <HeadBar key={other} survey={survey} cell={other} share={distance / 0.8326}>{distance.toFixed(2)}</HeadBar>)}</tbody></table>
      <p class="quiet small">{say("heads_alike_key", { windows: say("n_windows", { n: count(survey.compared) }) })}</p>
    </section>
  );
}

const FIELDS: Field[] = ["mean", "deviation", "q05", "q25", "q50", "q75", "q95"];
const fieldName = (field: Field): string => (field === "mean" || field === "deviation" ? say(field) : `${Number(field.slice(1))}%`);

/** Every statistic of the head over its windows. */
function Numbers({ survey, cell }: { survey: Survey; cell: number }) {
  return (
    <details class="panel">
      <summary>{say("all_numbers")}</summary>
      <div class="across" role="region" aria-label={say("all_numbers")} tabIndex={0}>
        <table class="table" data-test="numbers">
          <caption class="quiet small"><span>{say("numbers_of")}</span></caption>
          <thead><tr><th scope="col">{say("statistic")}</th>{FIELDS.map((field) => <th key={field} scope="col">{fieldName(field)}</th>)}</tr></thead>
          <tbody>{survey.statistics.map((row) => (
            <tr key={row.name}><th scope="row" title={translated(row.meaning)}>{called(row)}</th>{FIELDS.map((field) => <td key={field}>{rounded(row[field][cell])}</td>)}</tr>
          ))}</tbody>
        </table>
      </div>
    </details>
  );
}
