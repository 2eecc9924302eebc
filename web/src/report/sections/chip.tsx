// A head's name as a link to its page, tinted by its label; a row that it begins, and the bar in it.
import type { ComponentChildren } from "preact";
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

/** A bar on its rail, and a mark at another share of it. */
export const Rail = ({ share, mark = null }: { share: number; mark?: number | null }) => (
  <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
    <rect class="rail" width={100} height={6} y={1} /><rect class="bar" width={100 * Math.min(1, share)} height={6} y={1} />
    {mark !== null && <rect class="mark" x={100 * Math.min(1, mark) - 0.3} width={0.8} height={8} />}
  </svg>
);

/** A head with its label, a bar, and the bar's number. */
export const HeadBar = ({ survey, cell, share, children }: { survey: Survey; cell: number; share: number; children: ComponentChildren }) => (
  <tr>
    <th scope="row"><Chip survey={survey} cell={cell} /></th><td class="wide">{survey.labels?.[cell] && shortOf(survey.labels[cell])}</td>
    <td class="barred"><Rail share={share} /></td><td>{children}</td>
  </tr>
);
