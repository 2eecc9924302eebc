// What is worth reading in the text, below it: a sentence and a number each, and a click to its head and cell.
import type { ComponentChildren } from "preact";
import { placeOf } from "../state/comparing";
import { goTo } from "../state/opening";
import * as state from "../state/state";
import { wordAt } from "../text/shown";
import { at, doc } from "../state/store";
import type { Axis, Finding, TraceInfo } from "../trace/trace";
import { cut, isWord, percent, say, tell } from "../words";
import { short } from "./slots";

/** From here on a share is called all but whole. */
const WHOLE = 0.995;
const share = (value: number): string => (value >= WHOLE && value < 1 ? say("over", { share: percent(0.99) }) : percent(value));

/** What a finding is, in the reader's language; one of a kind that the page has no words for keeps Python's sentence. */
function phrase(info: TraceInfo, { kind, sentence, cells, token, numbers }: Finding): ComponentChildren {
  const word = `finding_${kind}`;
  if (!isWord(word)) return sentence;
  const [first, second] = cells;
  const called = (axis: Axis, place: number | null): ComponentChildren => <bdi>{cut(place === null ? "" : wordAt(axis, place))}</bdi>;
  return tell(word, { token: token ? <bdi>{token}</bdi> : called(info.keys, first.key), text: called(info.queries, first.query) }, {
    head: `${first.layer}.${first.head}`, other: second ? `${second.layer}.${second.head}` : "", n: numbers.heads ?? 1, of: numbers.of ?? 1,
  });
}

/** Its head and number, and what that is held against. */
function evidence({ kind, cells: [{ layer, head }, most], numbers }: Finding): [number: string, against: string] {
  const name = `${layer}.${head}`;
  const value = numbers.weight ?? numbers.overlap ?? numbers.ratio ?? NaN;
  const against = ["expected", "written", "average", "between", "ratio"].find((one) => one in numbers)!;
  const word = `evidence_${against}`;
  const told = isWord(word) ? say(word, { share: share(value), other: percent(numbers[against]) }) : "";
  // how alike two heads are, or how little one writes, is no share of one head's weight
  const number = numbers.weight === undefined ? told : kind === "sink" ? say("finding_idle", { share: share(value) })
    : kind !== "link" ? say("finding_share", { head: name, share: share(value) })
    : say("finding_weight", { head: name, weight: short(value) }) + (numbers.brings ? `, ${say("finding_brings", { share: short(numbers.brings) })}` : "") + (most ? `; ${most.layer}.${most.head} ${short(numbers.most)}` : "");
  return [number, told];
}

const isHere = (info: TraceInfo, finding: Finding): boolean => finding.cells.some(({ layer, head, query, key }, n) =>
  !(n > 0 && query === null) && placeOf(info, layer, head)?.n === at.value.n && query === state.query.value && key === state.key.value);

/** A pair of heads that look alike: the second click shows the other one. */
function open(info: TraceInfo, { cells }: Finding): void {
  const [first, second] = cells;
  const there = placeOf(info, first.layer, first.head)?.n === at.value.n;
  goTo(info, there && second && second.query === first.query ? second : first);
  if (first.query !== null && first.key !== null) state.statistic.value = "weight";
}

export function Findings() {
  const { info } = doc.value!;
  const every = info.findings ?? [];
  return (
    <section class="findings" aria-label={say("findings")}>
      {!every.length && <p class="quiet small">{say(info.findings ? "findings_none" : "findings_absent")}</p>}
      {every.map((finding, n) => {
        const [number, against] = evidence(finding);
        return (
          <button key={n} class="finding" aria-pressed={isHere(info, finding)} data-kind={finding.kind} title={against} onClick={() => open(info, finding)}>
            <b>{phrase(info, finding)}</b> <small>{number}</small>
          </button>
        );
      })}
    </section>
  );
}
