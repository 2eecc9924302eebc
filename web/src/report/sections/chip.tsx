// A head's name as a link to its page, tinted by its label.
import { headLabel, type Survey } from "../data";
import { groupOf, shortOf } from "../kinds";
import { headHref } from "../links";
import { say } from "../words";

export function Chip({ survey, cell, ...rest }: { survey: Survey; cell: number; "data-statistic"?: string }) {
  const label = survey.labels?.[cell];
  const name = headLabel(survey, cell);
  return (
    <a class={`chip g-${label ? groupOf(label) : "plain"}`} href={headHref(survey, cell)} data-cell={cell}
      title={label ? `${say("head", { head: name })}: ${shortOf(label)}` : say("head", { head: name })} {...rest}>{name}</a>
  );
}
