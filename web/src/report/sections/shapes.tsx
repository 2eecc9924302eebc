// Distributions of one head: bars, with the median head as a line.
import { rounded } from "../../words/numbers";
import type { Shapes } from "../data";
import { share } from "../kinds";
import { say } from "../words";

const [WIDTH, HEIGHT] = [336, 58];

interface Bars {
  values: (number | null)[];
  middle: (number | null)[];
  says: (n: number, value: number) => string;
  ticks: [number, string][];
  name: string;
}

/** Bars on a square-root scale whose top is the largest of both series. */
function Bars({ values, middle, says, ticks, name }: Bars) {
  const top = Math.max(1e-9, ...[...values, ...middle].map((value) => Math.sqrt(Math.max(0, value ?? 0))));
  const step = WIDTH / values.length;
  const y = (value: number | null): number => HEIGHT - (HEIGHT * Math.sqrt(Math.max(0, value ?? 0))) / top;
  return (
    <svg class="shape" viewBox={`0 0 ${WIDTH} ${HEIGHT + 14}`} data-test={name} role="img" aria-label={say(name === "distance" ? "by_distance" : name === "entropy" ? "focused" : "strongest_shape")}>
      {values.map((value, n) => value !== null && (
        <rect key={n} class="bar" x={n * step + 0.5} width={step - 1} y={y(value)} height={HEIGHT - y(value)} data-value={value}><title>{says(n, value)}</title></rect>
      ))}
      {middle.map((value, n) => value !== null && <line key={n} class="middle" x1={n * step} x2={(n + 1) * step} y1={y(value)} y2={y(value)} />)}
      <line class="rule" x1={0} x2={WIDTH} y1={HEIGHT} y2={HEIGHT} />
      {ticks.map(([at, text]) => <text key={at} class={`tick${at === 0 ? " start" : at === values.length - 1 ? " end" : ""}`} x={at === 0 ? 0 : at === values.length - 1 ? WIDTH : (at + 0.5) * step} y={HEIGHT + 12}>{text}</text>)}
    </svg>
  );
}

export function Distributions({ shapes, middle }: { shapes: Shapes; middle: Shapes }) {
  const reach = (shapes.distance.length - 1) / 2;
  const histogram = (name: "entropy" | "strongest", ticks: [number, string][]) => (
    <Bars name={name} values={shapes[name]} middle={middle[name]} ticks={ticks}
      says={(n, value) => say("bin", { low: (n / shapes[name].length).toFixed(2), high: ((n + 1) / shapes[name].length).toFixed(2), share: share(value) })} />
  );
  return (
    <>
      <section>
        <h2>{say("by_distance")}</h2>
        <Bars name="distance" values={shapes.distance} middle={middle.distance} ticks={[[0, `−${reach}`], [reach / 2, `−${reach / 2}`], [reach, say("itself")], [1.5 * reach, `+${reach / 2}`], [2 * reach, `+${reach}`]]}
          says={(n, value) => say("distance_bin", { n: n - reach, value: rounded(value) })} />
        <p class="quiet small">{say("by_distance_key")}</p>
      </section>
      <section>
        <h2>{say("focused")}</h2>
        {histogram("entropy", [[0, say("one_word")], [shapes.entropy.length - 1, say("all_alike")]])}
        <p class="quiet small">{say("focused_key")}</p>
      </section>
      <section>
        <h2>{say("strongest_shape")}</h2>
        {histogram("strongest", [[0, "0"], [shapes.strongest.length - 1, "1"]])}
        <p class="quiet small">{say("strongest_key")}</p>
      </section>
    </>
  );
}
