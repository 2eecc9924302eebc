// The heads by the kind of their label: a paragraph for each, every clause with its number and a link.
import { count } from "../../words/numbers";
import type { Survey } from "../data";
import { byGroup, share, SPECIFIC, titleOf, type Group } from "../kinds";
import { say, told } from "../words";
import { Chip } from "./chip";

/** Heads that a paragraph names. */
const NAMED: Partial<Record<Group, number>> = { position: 3, syntax: 3 };

/** The mean of a number over the heads that have it. */
function meanOf(values: (number | null | undefined)[]): number | null {
  const present = values.filter((value): value is number => value !== null && value !== undefined);
  return present.length ? present.reduce((sum, value) => sum + value, 0) / present.length : null;
}

export function Story({ survey }: { survey: Survey }) {
  if (!survey.labels) return <p class="quiet">{say("no_labels")}</p>;
  const groups = byGroup(survey);
  return (
    <section class="panel" id="kinds">
      <h2>{say("kinds")} <small>{told(say("lead"), { share: <b data-test="on-special">{share(meanOf(survey.named.map((cell) => survey.labels![cell]?.special)))}</b> })} {say("story_key")}</small></h2>
      <div class="story" data-test="story">
        {SPECIFIC.filter((group) => groups.get(group)!.length).map((group) => <Paragraph key={group} survey={survey} group={group} cells={groups.get(group)!} />)}
      </div>
    </section>
  );
}

function Paragraph({ survey, group, cells }: { survey: Survey; group: Group; cells: number[] }) {
  const shown = cells.slice(0, NAMED[group] ?? 2);
  const rest = cells.length - shown.length;
  const layers = new Map<number, number>();
  for (const cell of cells) layers.set(Math.floor(cell / survey.heads.length), (layers.get(Math.floor(cell / survey.heads.length)) ?? 0) + 1);
  const [row, most] = [...layers].sort((a, b) => b[1] - a[1])[0];
  return (
    <p data-group={group}>
      <b class={`g-${group} name`}>{say(`group_${group}`)}</b> <span class="quiet small">{say(`group_${group}_key`)}</span><br />
      {shown.map((cell, n) => <Clause key={cell} survey={survey} cell={cell} last={n === shown.length - 1 && !rest} />)}
      {rest > 0 && <>{say("story_more", { n: count(rest) })} </>}
      {cells.length > 3 && most / cells.length > 0.6 && say("story_layer", { n: count(most), layer: survey.layers[row] })}
    </p>
  );
}

function Clause({ survey, cell, last }: { survey: Survey; cell: number; last: boolean }) {
  const label = survey.labels![cell]!;
  return (
    <span data-clause={cell}>
      <Chip survey={survey} cell={cell} /> <bdi>{titleOf(label)}</bdi>{" "}
      <b>{share(label.score)}</b>{label.baseline !== null && <span class="quiet">{say("aside", { n: share(label.baseline) })}</span>}
      {say(last ? "stop" : "also")}
    </span>
  );
}
