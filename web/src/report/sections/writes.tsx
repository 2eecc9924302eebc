// What a head writes at the words of its best examples: the tokens whose logits it raises and lowers most.
import type { Line } from "../data";
import { say } from "../words";

export function Writes({ lines }: { lines: Line[] }) {
  const known = lines.filter((line) => line.raised !== null && line.lowered !== null);
  if (!known.length) return null;
  const list = (tokens: [string, number][]) => tokens.map(([token, by], n) => (
    <span key={n}>{n > 0 && ", "}<bdi>{token}</bdi> <small class="quiet">{by < 0 ? "−" : "+"}{Math.abs(by).toFixed(2)}</small></span>
  ));
  return (
    <section data-test="writes">
      <h2>{say("writes")} <small class="quiet">{say("writes_key")}</small></h2>
      <dl class="writes">{known.map((line, n) => (
        <div key={n}>
          <dt><bdi class="tag">{line.words[line.query]}</bdi> → <bdi>{line.words[line.key]}</bdi></dt>
          <dd>{say("raises")} {list(line.raised!)}</dd>
          <dd>{say("lowers")} {list(line.lowered!)}</dd>
        </div>
      ))}</dl>
    </section>
  );
}
