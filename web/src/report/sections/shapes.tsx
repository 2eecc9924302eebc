// How far one head looks: bars by distance, with the median head as a line.
import { rounded } from "../../words/numbers";
import type { Head } from "../data";
import { say } from "../words";

const [WIDTH, HEIGHT] = [336, 58];
type Numbers = NonNullable<Head["distances"]>;

/** Bars on a square-root scale whose top is the largest of both series. */
export function Distances({ values, middle }: { values: Numbers; middle: Numbers }) {
  const reach = (values.length - 1) / 2;
  const top = Math.max(1e-9, ...[...values, ...middle].map((value) => Math.sqrt(Math.max(0, value ?? 0))));
  const step = WIDTH / values.length;
  const y = (value: number | null): number => HEIGHT - (HEIGHT * Math.sqrt(Math.max(0, value ?? 0))) / top;
  const ticks: [number, string][] = [[0, `−${reach}`], [reach / 2, `−${reach / 2}`], [reach, say("itself")], [1.5 * reach, `+${reach / 2}`], [2 * reach, `+${reach}`]];
  return (
    <section>
      <h2>{say("by_distance")}</h2>
      <svg class="shape" viewBox={`0 0 ${WIDTH} ${HEIGHT + 14}`} data-test="distance" role="img" aria-label={say("by_distance")}>
        {values.map((value, n) => value !== null && (
          <rect key={n} class="bar" x={n * step + 0.5} width={step - 1} y={y(value)} height={HEIGHT - y(value)} data-value={value}><title>{say("distance_bin", { n: n - reach, value: rounded(value) })}</title></rect>
        ))}
        {middle.map((value, n) => value !== null && <line key={n} class="middle" x1={n * step} x2={(n + 1) * step} y1={y(value)} y2={y(value)} />)}
        <line class="rule" x1={0} x2={WIDTH} y1={HEIGHT} y2={HEIGHT} />
        {ticks.map(([at, text]) => <text key={at} class={`tick${at === 0 ? " start" : at === values.length - 1 ? " end" : ""}`} x={at === 0 ? 0 : at === values.length - 1 ? WIDTH : (at + 0.5) * step} y={HEIGHT + 12}>{text}</text>)}
      </svg>
      <p class="quiet small">{say("by_distance_key")} {middle.length > 0 && say("median_line")}</p>
    </section>
  );
}
