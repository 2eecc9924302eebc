// The figures: statistics by layer, and the heads on a plane. After Clark et al. 2019, "What Does BERT Look At?".
import { rounded } from "../../words/numbers";
import { headLabel, type LayerFigure, type Survey } from "../data";
import { say, tongueOf, translated } from "../words";
import { PlaneFigure } from "./plane";

export function Figures({ survey }: { survey: Survey }) {
  return (
    <section class="panel" id="figures">
      <h2>{say("figures")}</h2>
      <div class="figures">
        {survey.figures.map((figure) => (
          <figure key={figure.title}>
            <h3 lang={tongueOf(figure.title)}>{translated(figure.title)}</h3>
            <div class="panels" role="img" aria-label={say("by_layer", { title: translated(figure.title) })}>
              {figure.panels.map(([name, title]) => <Panel key={name} survey={survey} figure={figure} name={name} title={title} />)}
            </div>
            <figcaption>{say("layer_key", { source: figure.source })}</figcaption>
          </figure>
        ))}
        {survey.plane && <PlaneFigure survey={survey} plane={survey.plane} />}
      </div>
    </section>
  );
}

const [WIDTH, HEIGHT] = [300, 220];
const [LEFT, RIGHT, TOP, BOTTOM] = [58, 290, 24, 186];
const MIDDLE = (LEFT + RIGHT) / 2;

/** One statistic: layers on the x axis, a point per head, a line through the layers' means. */
function Panel({ survey, figure, name, title }: { survey: Survey; figure: LayerFigure; name: string; title: string }) {
  const { layers, heads } = survey;
  const mean = survey.statistics.find((statistic) => statistic.name === name)?.mean ?? [];
  const x = (row: number): number => LEFT + ((RIGHT - LEFT) / layers.length) * (row + 0.5);
  const y = (value: number): number => BOTTOM - ((BOTTOM - TOP) * value) / figure.highest;
  const rows = layers.map((_, row) => mean.slice(row * heads.length, (row + 1) * heads.length).filter((value) => value !== null));
  const line = rows.flatMap((values, row) =>
    values.length ? [`${x(row).toFixed(2)},${y(values.reduce((sum, value) => sum + value, 0) / values.length).toFixed(2)}`] : []);
  return (
    <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} data-test="panel">
      <text class="title" x={MIDDLE} y={14}>{translated(title)}</text>
      <text class="axis" transform={`translate(11 ${(TOP + BOTTOM) / 2}) rotate(-90)`}>{translated(figure.axis)}</text>
      {[0, 1, 2, 3, 4].map((n) => {
        const value = (figure.highest * n) / 4;
        return <g key={n}><line class="rule" x1={LEFT} x2={RIGHT} y1={y(value)} y2={y(value)} /><text class="tick end" x={LEFT - 5} y={y(value) + 3.5}>{Number(value.toPrecision(6))}</text></g>;
      })}
      {survey.ticks.map((layer) => <text key={layer} class="tick" x={x(layers.indexOf(layer))} y={BOTTOM + 14}>{layer}</text>)}
      <text class="axis" x={MIDDLE} y={HEIGHT - 5}>{say("layer")}</text>
      {mean.map((value, cell) => value !== null && (
        <circle key={cell} class="point" cx={x(Math.floor(cell / heads.length))} cy={y(value)} r={2.6} data-cell={cell} data-value={value}>
          <title>{say("cell", { head: headLabel(survey, cell), value: rounded(value) })}</title>
        </circle>
      ))}
      {line.length ? <polyline class="mean" points={line.join(" ")} /> : <text class="none" x={MIDDLE} y={(TOP + BOTTOM) / 2}>{say("legend_none")}</text>}
    </svg>
  );
}
