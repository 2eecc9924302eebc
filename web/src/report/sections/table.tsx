// All heads as a table that sorts and filters.
import { count } from "../../words/numbers";
import type { Label, Survey } from "../data";
import { groupOf, share, shortOf, tokenOf } from "../kinds";
import { figure } from "../numbers";
import { sorted, upward } from "../state";
import { say, type Word } from "../words";
import { Chip } from "./chip";
import { isWanted } from "./finder";
import { arrow } from "./relations";
import { Score } from "./score";

interface Row {
  cell: number;
  label: Label | null;
}

/** A column: its name, and what it is sorted by. Null sorts last. */
interface Column {
  name: string;
  /** Null for the first token, which is called by its name. */
  word: Word | null;
  of: (row: Row) => number | string | null;
}

export function columnsOf(survey: Survey): Column[] {
  const statistic = (name: string): Column[] => {
    const found = survey.statistics.find((other) => other.name === name);
    return found ? [{ name, word: `stat_${name}` as Word, of: ({ cell }) => found.mean[cell] }] : [];
  };
  return [
    { name: "head", word: "heads_one", of: ({ cell }) => cell },
    { name: "label", word: "label", of: ({ label }) => (label ? shortOf(label) : null) },
    { name: "score", word: "score", of: ({ label }) => label?.score ?? null },
    { name: "coverage", word: "coverage", of: ({ label }) => label?.coverage ?? null },
    { name: "first", word: null, of: ({ label }) => label?.first ?? null },
    { name: "words", word: "on_words", of: ({ label }) => (label?.special == null ? null : 1 - label.special) },
    ...statistic("entropy"), ...statistic("distance"),
    ...(survey.effects ? [{ name: "effect", word: "effect" as Word, of: ({ cell }: Row) => survey.effects!.change[cell] }] : []),
  ];
}

const called = (word: Word | null): string => (word ? say(word) : tokenOf("first"));

/** The rows that are wanted, in order. */
export function rowsOf(survey: Survey, columns: Column[], by: string, up: boolean): Row[] {
  const rows = survey.named.map((cell): Row => ({ cell, label: survey.labels?.[cell] ?? null })).filter(({ cell }) => isWanted(survey, cell));
  const { of } = columns.find(({ name }) => name === by) ?? columns[0];
  return rows.sort((a, b) => {
    const [x, y] = [of(a), of(b)];
    if (x === null || y === null) return Number(x === null) - Number(y === null) || a.cell - b.cell;
    const order = typeof x === "string" ? x.localeCompare(String(y)) : x - Number(y);
    return (up ? order : -order) || a.cell - b.cell;
  });
}

export function HeadsTable({ survey }: { survey: Survey }) {
  const columns = columnsOf(survey);
  const rows = rowsOf(survey, columns, sorted.value, upward.value);
  const sort = (name: string): void => {
    upward.value = sorted.value === name ? !upward.value : name === "head" || name === "label";
    sorted.value = name;
  };
  return (
    <section class="panel" id="table">
      <div class="row spread">
        <h2>{say("table")} <small data-test="rows">{say("n_heads", { n: count(rows.length) })}</small></h2>
        <span class="quiet small pre">{say("figure_key")}</span>
      </div>
      <div class="across">
        <table class="table heads" data-test="heads">
          <thead><tr>
            {columns.map(({ name, word }) => (
              <th key={name} scope="col" aria-sort={sorted.value === name ? (upward.value ? "ascending" : "descending") : "none"}>
                <button title={say("sort_by", { column: called(word) })} data-sort={name} onClick={() => sort(name)}>{called(word)}{sorted.value === name && (upward.value ? " ↑" : " ↓")}</button>
              </th>
            ))}
            <th scope="col">{say("interval_column")}</th><th scope="col">{say("best_relation")}</th>
          </tr></thead>
          <tbody>{rows.map((row) => <HeadRow key={row.cell} survey={survey} row={row} columns={columns} />)}</tbody>
        </table>
      </div>
    </section>
  );
}

function HeadRow({ survey, row: { cell, label }, columns }: { survey: Survey; row: Row; columns: Column[] }) {
  const relation = survey.syntax?.find((row) => row.cell === cell && (row.heldOut ?? row.accuracy) > row.offsetAccuracy);
  return (
    <tr data-row={cell} class={label ? `g-${groupOf(label)}` : ""}>
      <th scope="row"><Chip survey={survey} cell={cell} /></th>
      {columns.slice(1).map(({ name, of }) => {
        const value = of({ cell, label });
        if (name === "label") return <td key={name} class={`wide${label?.part ? " partly" : ""}`}>{label && <><i class={`swatch g-${groupOf(label)}`} aria-hidden="true" /> {shortOf(label)}</>}</td>;
        return <td key={name} data-column={name}>{name === "score" ? (value === null ? "" : share(value as number)) : name === "coverage" ? (value ?? "") : figure(name, value as number | null)}</td>;
      })}
      <td>{label && <Score of={label} />}</td>
      <td class="wide small">{relation && <>{arrow(relation.ends, relation.down)} <b>{share(relation.heldOut ?? relation.accuracy)}</b> <span class="quiet">({share(relation.offsetAccuracy)})</span></>}</td>
    </tr>
  );
}
