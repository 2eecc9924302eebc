// What a head writes, over the corpus and at the words of its best examples: the tokens whose logits it raises and lowers most.
import { count, written } from "../../words/numbers";
import type { Head, Line } from "../data";
import { say, told } from "../words";

/** The tokens that it makes likelier over the corpus, where they are right. */
export function Written({ of }: { of: Head["writes"] }) {
  if (!of || of.bits === null) return null;
  const windows = say("n_windows", { n: count(of.windows) });
  const bits = (value: number | null): string => (value === null ? "–" : written(value.toFixed(3)));
  return of.tokens.length ? (
    <p data-test="written">{told(say("written"), {
      tokens: of.tokens.map((token, n) => <span key={n}>{n > 0 && " "}<bdi class="tag">{token}</bdi></span>),
      bits: <b>+{bits(of.bits)}</b>, low: bits(of.low), high: bits(of.high), windows,
    })}</p>
  ) : <p class="quiet small" data-test="written">{say("written_none", { windows })}</p>;
}

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
