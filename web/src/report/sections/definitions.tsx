// The meaning of each statistic, and those that were left out.
import type { Survey } from "../data";
import { called } from "../numbers";
import { say, told, tongueOf, translated } from "../words";

export function Definitions({ survey }: { survey: Survey }) {
  return (
    <section class="panel">
      <h2>{say("measured")}</h2>
      <p class="quiet small">{say("measured_key")}</p>
      <dl class="definitions" data-test="definitions">
        {survey.statistics.map((one) => [<dt key={one.name}>{called(one)}</dt>, <dd key={`${one.name} means`} lang={tongueOf(one.meaning)}>{translated(one.meaning)}</dd>])}
        {survey.leftOut.map(([name, reason]) => [
          <dt key={name}>{name}</dt>, <dd key={`${name} left out`}>{told(say("left_out"), { reason: <span lang="en">{reason}</span> })}</dd>,
        ])}
      </dl>
    </section>
  );
}
