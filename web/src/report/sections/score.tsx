// A score on an axis from 0 to 100 %: a dot with its interval, a tick for the baseline.
import { share } from "../kinds";
import { say } from "../words";

interface Scored {
  score: number | null;
  low: number | null;
  high: number | null;
  baseline: number | null;
}

const [HEIGHT, EDGE] = [16, 6];

export function Score({ of: { score, low, high, baseline }, axis = false }: { of: Scored; axis?: boolean }) {
  if (score === null) return null;
  const [wide, y] = [axis ? 250 : 140, HEIGHT / 2];
  const x = (value: number): number => EDGE + (wide - 2 * EDGE) * Math.min(1, Math.max(0, value));
  const says = say("score_alt", { score: share(score), low: share(low), high: share(high), base: share(baseline) });
  return (
    <svg class="score" viewBox={`0 0 ${wide} ${axis ? HEIGHT + 12 : HEIGHT}`} role="img" aria-label={says}>
      <title>{says}</title>
      <line class="rail" x1={EDGE} x2={wide - EDGE} y1={y} y2={y} />
      {baseline !== null && <line class="base" x1={x(baseline)} x2={x(baseline)} y1={y - 5} y2={y + 5} />}
      {low !== null && high !== null && <line class="span" x1={x(low)} x2={x(high)} y1={y} y2={y} />}
      <circle class="dot" cx={x(score)} cy={y} r={3.4} />
      {axis && [0, 0.5, 1].map((at) => (
        <text key={at} class={`tick${at === 0 ? " start" : at === 1 ? " end" : ""}`} x={at === 0 ? 0 : at === 1 ? wide : x(at)} y={HEIGHT + 10}>{Math.round(100 * at)}{at === 1 ? " %" : ""}</text>
      ))}
    </svg>
  );
}
