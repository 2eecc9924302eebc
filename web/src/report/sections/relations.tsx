// Syntax: what a head finds of the treebank's relations; and on the home page, which head finds each of them.
import { count } from "../../words/numbers";
import { spoken } from "../../words/speech";
import type { Ends, Head, Survey } from "../data";
import { share } from "../kinds";
import { say } from "../words";
import { Chip } from "./chip";
import { Score } from "./score";

/** What looks, and what it should find. */
export function arrow(ends: Ends, down: boolean): string {
  const [dependent, head] = ends[spoken.value];
  return say("arrow", down ? { from: head, to: dependent } : { from: dependent, to: head });
}

export function Relations({ survey, head: { cell, relations } }: { survey: Survey; head: Head }) {
  if (!relations?.length) return null;
  const many = survey.named.length > 1;
  return (
    <section>
      <div class="row spread"><h2>{say("syntax_title")} <small>{say("syntax_of_head")}</small></h2><small class="pre">{say("figure_key")}</small></div>
      <div class="across" role="region" aria-label={say("syntax_title")} tabIndex={0}>
        <table class="table" data-test="relations">
          <thead><tr>
            <th scope="col">{say("relation")}</th><th scope="col">{say("n")}</th><th scope="col">{say("right")}</th><th scope="col" class="figure">{say("interval_column")}</th>
            <th scope="col">{say("offset")}</th>{many && <th scope="col">{say("best_head")}</th>}
          </tr></thead>
          <tbody>{relations.map((row) => (
            <tr key={`${row.relation} ${row.way}`}>
              <th scope="row" title={row.relation}>{arrow(row.ends, row.way === "down")} <small>{row.relation}</small></th>
              <td>{count(row.count)}</td><td><b>{share(row.score)}</b></td><td><Score of={row} /></td>
              <td>{share(row.baseline)} <small>{signed(row.offset)}</small></td>
              {many && <td>{row.bestCell === cell ? say("best_of_all") : <><Chip survey={survey} cell={row.bestCell} /> <small>{share(row.bestScore)}</small></>}</td>}
            </tr>
          ))}</tbody>
        </table>
      </div>
    </section>
  );
}

const signed = (offset: number): string => (offset < 0 ? `−${-offset}` : `+${offset}`);

export function SyntaxTable({ survey }: { survey: Survey }) {
  if (!survey.syntax?.length) return null;
  return (
    <section class="panel" id="syntax">
      <div class="row spread"><h2>{say("syntax_home")}</h2><small class="pre">{say("figure_key")}</small></div>
      <p class="quiet small">{say("syntax_home_key")}</p>
      <div class="across">
        <table class="table" data-test="syntax">
          <thead><tr>
            <th scope="col">{say("relation")}</th><th scope="col">{say("n")}</th><th scope="col">{say("best_head")}</th><th scope="col">{say("right")}</th>
            <th scope="col" class="figure">{say("interval_column")}</th><th scope="col">{say("offset")}</th>
          </tr></thead>
          <tbody>{survey.syntax.map((row) => (
            <tr key={`${row.relation} ${row.down}`} data-relation={`${row.relation} ${row.down ? "down" : "up"}`}>
              <th scope="row">{arrow(row.ends, row.down)} <small>{row.relation}</small></th>
              <td>{count(row.count)}</td><td><Chip survey={survey} cell={row.cell} /></td>
              <td><b>{share(row.heldOut ?? row.accuracy)}</b></td>
              <td><Score of={{ score: row.heldOut ?? row.accuracy, low: row.low, high: row.high, baseline: row.offsetAccuracy }} /></td>
              <td>{share(row.offsetAccuracy)} <small>{signed(row.offset)}</small></td>
            </tr>
          ))}</tbody>
        </table>
      </div>
    </section>
  );
}
