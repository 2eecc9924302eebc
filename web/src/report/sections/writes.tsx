// What a head writes: the tokens that its output makes likelier where they are right.
import { count, written } from "../../words/numbers";
import type { Head } from "../data";
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
