// The selected head: the distribution over its windows, all of its numbers, and the most similar heads.
import { count, rounded } from "../../words/numbers";
import { headLabel, type Field, type Statistic, type Survey } from "../data";
import { choose, chosenCell, chosenStatistic, statistic } from "../state";
import { counted, say } from "../words";
import { HeadButton } from "./headbutton";

const FIELDS: Field[] = ["mean", "deviation", "q05", "q25", "q50", "q75", "q95"];
const fieldName = (field: Field): string =>
  field === "mean" || field === "deviation" ? say(field) : `${Number(field.slice(1))}%`;

export function Head({ survey }: { survey: Survey }) {
  const cell = chosenCell(survey);
  const chosen = chosenStatistic(survey);
  const alike = survey.nearest?.[cell];
  return (
    <section class="panel inspector">
      <h2 data-test="head">{say("head", { head: headLabel(survey, cell) })}</h2>
      <p data-test="reading" aria-live="polite">{chosen && reading(chosen, cell)}</p>
      {chosen && <Spread chosen={chosen} cell={cell} />}
      <p class="quiet small">{say("spread_key")}</p>
      {alike && <p class="small" data-test="alike">{say("alike")} {alike.map(([other, distance], n) => (
        <span key={other}>{n > 0 && ", "}<HeadButton survey={survey} cell={other} onClick={() => choose(survey, other)} /> ({rounded(distance)})</span>
      ))}</p>}
      <div class="across">
        <table class="table">
          <caption class="quiet small"><span>{say("numbers_of")}</span></caption>
          <thead><tr><th scope="col">{say("statistic")}</th>{FIELDS.map((field) => <th key={field} scope="col">{fieldName(field)}</th>)}</tr></thead>
          <tbody data-test="numbers">
            {survey.statistics.map((row) => (
              <tr key={row.name} class={row === chosen ? "chosen" : ""}>
                <th scope="row"><button title={row.meaning} onClick={() => { statistic.value = row.name; }}>{row.name}</button></th>
                {FIELDS.map((field) => <td key={field}>{rounded(row[field][cell])}</td>)}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function reading({ name, mean, q25, q75, count: counts }: Statistic, cell: number): string {
  if (mean[cell] === null) return say("reading_none", { statistic: name });
  const windows = counted("n_windows", counts[cell], { n: count(counts[cell]) });
  return say("reading", { statistic: name, mean: rounded(mean[cell]), windows, low: rounded(q25[cell]), high: rounded(q75[cell]) });
}

const [LEFT, RIGHT] = [8, 392];

/** One head's windows: the line from 5% to 95%, the box from 25% to 75%, the median, the mean; below, all heads' means. */
function Spread({ chosen, cell }: { chosen: Statistic; cell: number }) {
  const lows = chosen.q05.filter((value) => value !== null);
  const [low, high] = [Math.min(...lows), Math.max(...chosen.q95.filter((value) => value !== null))];
  const from = chosen.signed ? low : Math.min(low, 0);
  const reach = high - from || 1;
  const x = (value: number | null): number => LEFT + ((RIGHT - LEFT) * ((value ?? 0) - from)) / reach;
  const { q05, q25, q50, q75, q95, mean } = chosen;
  return (
    <svg class="windows" data-test="spread" viewBox="0 0 400 70" role="img" aria-label={say("spread")}>
      {lows.length > 0 && <>
        {mean.map((value, n) => value !== null && <line key={n} class="all" x1={x(value)} y1={42} x2={x(value)} y2={50} />)}
        {mean[cell] !== null && <>
          <line class="whisker" x1={x(q05[cell])} y1={20} x2={x(q95[cell])} y2={20} />
          <rect class="box" x={x(q25[cell])} y={9} width={Math.max(1, x(q75[cell]) - x(q25[cell]))} height={22} />
          <line class="median" x1={x(q50[cell])} y1={6} x2={x(q50[cell])} y2={34} />
          <circle class="dot" cx={x(mean[cell])} cy={20} r={3.5} />
        </>}
        <line class="rule" x1={LEFT} y1={51} x2={RIGHT} y2={51} />
        {[0, 1, 2, 3, 4].map((n) => (
          <text key={n} class={`tick${n === 0 ? " start" : n === 4 ? " end" : ""}`} x={x(from + (reach * n) / 4)} y={64}>{rounded(from + (reach * n) / 4)}</text>
        ))}
      </>}
    </svg>
  );
}
