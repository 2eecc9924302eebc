// Where a head's weight goes, and where it ranks among all heads in every statistic.
import { count } from "../../words/numbers";
import type { Statistic, Survey } from "../data";
import { tokenOf } from "../kinds";
import { called, figure, numbersOf } from "../numbers";
import { say, translated, type Word } from "../words";
import { Rail } from "./chip";

/** The median of numbers; null for none. */
export function median(values: (number | null)[]): number | null {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  if (!sorted.length) return null;
  const middle = (sorted.length - 1) / 2;
  return (sorted[Math.floor(middle)] + sorted[Math.ceil(middle)]) / 2;
}

/** The head's place among all, from high to low, from 1. */
export const rankOf = (mean: (number | null)[], cell: number): number => 1 + mean.filter((value) => value !== null && value > mean[cell]!).length;

const PLACES: [string, Word | null][] = [
  ["cls", null], ["sep", null], ["same", "itself"], ["previous", "previous_token"], ["next", "next_token"], ["punctuation", "group_punctuation"],
];

export function Places({ survey, cell }: { survey: Survey; cell: number }) {
  const rows = PLACES.flatMap(([name, word]) => {
    const statistic = survey.statistics.find((other) => other.name === name);
    return statistic && statistic.mean[cell] !== null ? [{ name, word, value: statistic.mean[cell]!, middle: survey.named.length > 1 ? median(statistic.mean) : null }] : [];
  });
  if (!rows.length) return null;
  return (
    <section>
      <h2>{say("where_goes")}</h2>
      <dl class="places" data-test="places">
        {rows.map(({ name, word, value, middle }) => (
          <div key={name}>
            <dt>{word ? say(word) : tokenOf(name)}</dt>
            <dd><Rail share={value} mark={middle} /><b>{value.toFixed(2)}</b></dd>
          </div>
        ))}
      </dl>
      <p class="quiet small">{say("where_key")} {survey.named.length > 1 && say("median_mark")}</p>
    </section>
  );
}

const [WIDTH, HEIGHT] = [100, 12];

function Strip({ statistic: { mean }, cell }: { statistic: Statistic; cell: number }) {
  const values = mean.filter((value) => value !== null);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (value: number): number => 1 + ((WIDTH - 2) * (value - low)) / (high - low || 1);
  return (
    <svg class="strip" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true">
      {mean.map((value, n) => value !== null && n !== cell && <line key={n} class="all" x1={x(value)} x2={x(value)} y1={3} y2={9} />)}
      <rect class="bar" x={x(mean[cell]!) - 1} width={2} y={0} height={HEIGHT} />
    </svg>
  );
}

export function Ranks({ survey, cell }: { survey: Survey; cell: number }) {
  if (survey.named.length < 2) return null;
  const rows = numbersOf(survey).filter(({ mean }) => mean[cell] !== null);
  return (
    <section>
      <h2>{say("ranks", { n: count(survey.named.length) })}</h2>
      <table class="table ranks" data-test="ranks">
        <thead class="unseen"><tr><th scope="col">{say("statistic")}</th><td /><th scope="col">{say("mean")}</th><th scope="col">{say("rank")}</th></tr></thead>
        <tbody>{rows.map((row) => (
          <tr key={row.name}><th scope="row" title={translated(row.meaning)}>{called(row)}</th><td><Strip statistic={row} cell={cell} /></td><td>{figure(row.name, row.mean[cell])}</td><td class="quiet">{rankOf(row.mean, cell)}</td></tr>
        ))}</tbody>
      </table>
      <p class="quiet small">{say("ranks_key")}</p>
    </section>
  );
}
