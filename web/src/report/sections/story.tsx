// What stands out in this model: a paragraph for each kind of label, every clause with its number and a link.
import type { ComponentChildren } from "preact";
import { count } from "../../words/numbers";
import type { Survey } from "../data";
import { byGroup, share, SPECIFIC, titleOf, type Group } from "../kinds";
import { say, told } from "../words";
import { Chip } from "./chip";

/** Heads that a paragraph names. */
const NAMED: Partial<Record<Group, number>> = { position: 3, syntax: 3 };

/** The mean of a number over the heads that have it. */
export function meanOf(values: (number | null | undefined)[]): number | null {
  const present = values.filter((value): value is number => value !== null && value !== undefined);
  return present.length ? present.reduce((sum, value) => sum + value, 0) / present.length : null;
}

const heads = (n: number): string => say("n_heads", { n: count(n) });

export function Story({ survey }: { survey: Survey }) {
  const { labels, named } = survey;
  if (!labels) return <p class="quiet">{say("no_labels")}</p>;
  const groups = byGroup(survey);
  const none = groups.get("none")!.length;
  const lead: Record<string, ComponentChildren> = {
    share: <b data-test="on-special">{share(meanOf(named.map((cell) => labels[cell]?.special)))}</b>,
    labelled: <b data-test="labelled">{heads(named.length - none)}</b>,
    none: <b data-test="unlabelled">{heads(none)}</b>,
  };
  return (
    <div class="story" data-test="story">
      <p class="lead">{told(say("lead"), lead)}</p>
      {SPECIFIC.filter((group) => groups.get(group)!.length).map((group) => <Paragraph key={group} survey={survey} group={group} cells={groups.get(group)!} />)}
      <p class="quiet small">{say("story_key")}</p>
    </div>
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
      <b class={`g-${group} name`}>{say(`group_${group}`)}</b>{" "}
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
      <Chip survey={survey} cell={cell} /> {titleOf(label)}{" "}
      <b>{share(label.score)}</b>{label.baseline !== null && <span class="quiet">{say("aside", { n: share(label.baseline) })}</span>}
      {say(last ? "stop" : "also")}
    </span>
  );
}
