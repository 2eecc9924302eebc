// Heads that stand out in a statistic, as sentences with their numbers; each head links to its page.
import { rounded } from "../../words/numbers";
import type { Standing, Statistic, Survey } from "../data";
import { called } from "../numbers";
import { say, told, tongueOf, translated } from "../words";
import { Chip } from "./chip";

/** Statistics that no window has. */
export const unmeasured = ({ statistics }: Survey): Statistic[] => statistics.filter(({ mean }) => mean.every((value) => value === null));

export function StandingHeads({ survey }: { survey: Survey }) {
  const nothing = unmeasured(survey);
  if (!survey.standing.length && !nothing.length) return null;
  return (
    <section class="panel" id="standing">
      <h2>{say("standing")}</h2>
      {survey.standing.length > 0 && <p class="quiet small">{say("standing_key")}</p>}
      <ul class="standing" data-test="standing">
        {survey.standing.map((standing, n) => <Sentence key={n} survey={survey} standing={standing} />)}
        {nothing.length > 0 && <li>{say("nothing", { names: nothing.map(called).join(", ") })}</li>}
      </ul>
    </section>
  );
}

function Sentence({ survey, standing }: { survey: Survey; standing: Standing }) {
  const button = (cell: number) => <Chip key={cell} survey={survey} cell={cell} data-statistic={standing.statistic} />;
  const [[first, value], ...others] = standing.heads;
  const statistic = survey.statistics.find(({ name }) => name === standing.statistic)!;
  return (
    <li>
      {told(say("stands_out", { value: statistic.short ? `${rounded(value)} ${translated(statistic.short)}` : rounded(value), low: rounded(standing.low), high: rounded(standing.high) }), {
        head: button(first), says: <span lang={tongueOf(standing.says)}>{translated(standing.says)}</span>,
      })}{" "}
      {others.length > 0 && told(say("then"), { heads: others.map(([cell, mean], n) => <>{n > 0 && ", "}{button(cell)} ({rounded(mean)})</>) })}{" "}
      <span class="quiet">{say("median", { value: rounded(standing.middle) })} {called(statistic)}</span>
    </li>
  );
}
