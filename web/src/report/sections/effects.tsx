// Effects: the heads that are most felt when silenced, what it costs to remove heads one by one, and one head's effect.
import { count } from "../../words/numbers";
import { headLabel, type Effects, type Survey } from "../data";
import { small } from "../numbers";
import { say, translated } from "../words";
import { Chip, HeadBar } from "./chip";
import { rankOf } from "./ranks";

/** What was measured, in words. */
function measured(effects: Effects): string {
  return say("effect_measured", {
    what: translated(effects.output), method: say(effects.method === "mean" ? "effect_mean" : "effect_zero"), windows: say("n_windows", { n: count(effects.windows) }),
  });
}

const MOST = 6;

export function MostFelt({ survey }: { survey: Survey }) {
  const { effects } = survey;
  if (!effects) return null;
  const size = (cell: number): number => Math.abs(effects.change[cell] ?? 0);
  const cells = [...survey.named].sort((a, b) => size(b) - size(a)).slice(0, MOST);
  const top = size(cells[0]) || 1;
  return (
    <section class="panel felt" id="felt" data-test="felt">
      <h2>{say("felt")}</h2>
      <table class="table"><tbody>{cells.map((cell) => <HeadBar key={cell} survey={survey} cell={cell} share={size(cell) / top}><b>{small(effects.change[cell])}</b></HeadBar>)}</tbody></table>
      <p class="quiet small">{measured(effects)}</p>
    </section>
  );
}

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [720, 190, 74, 168];

/** The cost of removing heads one by one. */
export function Removal({ survey }: { survey: Survey }) {
  const { effects } = survey;
  if (!effects?.removal.length) return null;
  const steps = effects.removal;
  const values = steps.flatMap(({ cost, high }) => [cost, high ?? cost]);
  const [low, high] = [Math.min(0, ...steps.map(({ cost, low }) => low ?? cost)), Math.max(1e-9, ...values)];
  const x = (n: number): number => LEFT + ((WIDTH - LEFT - 8) * n) / steps.length;
  const y = (value: number): number => BOTTOM - ((BOTTOM - 10) * (value - low)) / (high - low);
  const path = (of: (n: number) => number | null): string =>
    [[0, 0] as const, ...steps.flatMap((_, n) => (of(n) === null ? [] : [[n + 1, of(n)!] as const]))].map(([n, value]) => `${x(n).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const band = [...steps.map((step, n) => [n + 1, step.low] as const), ...steps.map((step, n) => [n + 1, step.high] as const).reverse()]
    .flatMap(([n, value]) => (value === null ? [] : [`${x(n).toFixed(1)},${y(value).toFixed(1)}`])).join(" ");
  const halves = [0.25, 0.5, 0.75].map((part) => steps[Math.round(part * steps.length) - 1]).filter(Boolean);
  return (
    <section class="panel" id="removal">
      <h2>{say("removal")}</h2>
      <p>{halves.map((step) => say("removal_costs", { n: count(steps.indexOf(step) + 1), cost: small(step.costHeldOut ?? step.cost) })).join(" ")}</p>
      <svg class="curve" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={say("removal")} data-test="removal">
        {[0, 0.25, 0.5, 0.75, 1].map((part) => {
          const value = low + part * (high - low);
          return <g key={part}><line class="rule" x1={LEFT} x2={WIDTH - 8} y1={y(value)} y2={y(value)} /><text class="tick end" x={LEFT - 5} y={y(value) + 3.5}>{small(value)}</text></g>;
        })}
        {band && <polygon class="band" points={band} />}
        <polyline class="chosen" points={path((n) => steps[n].cost)} /><polyline class="mean" points={path((n) => steps[n].costHeldOut)} />
        {steps.map((step, n) => <circle key={n} class="point" cx={x(n + 1)} cy={y(step.costHeldOut ?? step.cost)} r={2.4} data-cost={step.cost} data-held={step.costHeldOut ?? ""}><title>{say("removal_step", { n: n + 1, head: headLabel(survey, step.cell), cost: small(step.costHeldOut ?? step.cost) })}</title></circle>)}
        {[0, 0.25, 0.5, 0.75, 1].map((part) => <text key={part} class="tick" x={x(part * steps.length)} y={BOTTOM + 14}>{Math.round(part * steps.length)}</text>)}
      </svg>
      <p class="quiet small">{say("removal_key")} {measured(effects)}</p>
      <p class="order small" data-test="order">{say("removal_order")} {steps.slice(0, 24).map(({ cell }) => <Chip key={cell} survey={survey} cell={cell} />)}{steps.length > 24 && " …"}</p>
    </section>
  );
}

/** What silencing one head changes. */
export function HeadEffect({ survey, cell }: { survey: Survey; cell: number }) {
  const { effects } = survey;
  if (!effects || effects.change[cell] === null) return <section><h2>{say("silenced")}</h2><p class="quiet small">{say("no_effects")}</p></section>;
  const place = effects.removal.findIndex((step) => step.cell === cell);
  return (
    <section data-test="effect">
      <h2>{say("silenced")}</h2>
      <p><b>{small(effects.change[cell])}</b>{effects.low[cell] !== null && <span class="quiet"> ({say("interval", { low: small(effects.low[cell]), high: small(effects.high[cell]) })})</span>}{survey.named.length > 1 && <>, {say("effect_rank", { rank: rankOf(effects.change.map((value) => value && Math.abs(value)), cell), n: survey.named.length })}</>}</p>
      {place >= 0 && effects.removal.length > 1 && <p>{say("effect_place", { place: place + 1, n: effects.removal.length })}</p>}
      <p class="quiet small">{measured(effects)}</p>
    </section>
  );
}
