// Heads that stand out in a statistic, as sentences with their numbers; each head leads to the grid.
import { rounded } from "../../words/numbers";
import type { Standing, Survey } from "../data";
import { choose, statistic } from "../state";
import { say, told } from "../words";
import { HeadButton } from "./headbutton";

export function StandingHeads({ survey }: { survey: Survey }) {
  const nothing = survey.statistics.filter(({ mean }) => mean.every((value) => value === null));
  return (
    <section class="panel">
      <h2>{say("standing")}</h2>
      <p class="quiet small">{say("standing_key")}</p>
      <ul class="standing" data-test="standing">
        {survey.standing.map((one, n) => <Sentence key={n} survey={survey} one={one} />)}
        {nothing.length > 0 && <li>{say("nothing", { names: nothing.map(({ name }) => name).join(", ") })}</li>}
      </ul>
    </section>
  );
}

function Sentence({ survey, one }: { survey: Survey; one: Standing }) {
  const go = (cell: number): void => {
    choose(survey, cell);
    statistic.value = one.statistic;
    document.getElementById("grid")?.scrollIntoView({ block: "start" });
  };
  const button = (cell: number) => <HeadButton key={cell} survey={survey} cell={cell} onClick={() => go(cell)} data-statistic={one.statistic} />;
  const [[first, value], ...others] = one.heads;
  const { short } = survey.statistics.find(({ name }) => name === one.statistic)!;
  return (
    <li>
      {told(say("stands_out", { value: short ? `${rounded(value)} ${short}` : rounded(value), low: rounded(one.low), high: rounded(one.high) }), {
        head: button(first), says: <span lang="en">{one.says}</span>,
      })}{" "}
      {others.length > 0 && told(say("then"), { heads: others.map(([cell, mean], n) => <>{n > 0 && ", "}{button(cell)} ({rounded(mean)})</>) })}{" "}
      <span class="quiet">{say("median", { value: rounded(one.middle) })} <code>{one.statistic}</code></span>
    </li>
  );
}
