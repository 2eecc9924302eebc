// Groups of heads, silenced: one in words, all beside as many heads at random, and more and more heads.
import { choose, group } from "../model/runs";
import { numberName, targetName, type Group, type Result, type Run } from "../model/ask";
import { hasModel } from "../model/remote";
import * as state from "../state/state";
import { docOf } from "../state/store";
import { hasRibbon } from "../text/sentence";
import { count, number, say, spoken, tell } from "../words";
import { Inked } from "./inked";
import { end, short } from "./slots";

/** Of a strip and of the curve; around the curve's lines. */
const STRIP = 72;
const [WIDE, HIGH] = [280, 220];
const [LEFT, RIGHT, TOP, BELOW] = [28, 16, 12, 34];
/** Most numbers below the curve. */
const TICKS = 6;

const groupName = ({ kind, name, heads }: Group): string => say(`grp_${kind}`, { n: count(heads.length), what: typeof name === "object" ? name[spoken.value] : name });

export function Groups({ run }: { run: Run }) {
  const { groups, base, draws, change } = run.result as Required<Result>;
  const one = group(run)!;
  const { kind, aside } = run.target!;
  const what = numberName(run.target!);
  const [, random, , lower] = one.drawn;
  const text = docOf(run.base);
  const ends = groups.flatMap(({ value, drawn, matched }) => [value, ...drawn.slice(0, 3), ...(matched ?? drawn).slice(0, 3)]);
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const x = (value: number): number => 6 + ((STRIP - 12) * (value - low)) / (high - low || 1);
  return (
    <div class="groups">
      <h2 class="headline">{tell("grp_headline", { group: <span class="pin">{groupName(one)}</span> }, {
        what, value: number(one.value), others: say(one.matched ? "grp_alike" : "grp_any"), random: number(one.matched?.[1] ?? random) })}</h2>
      <p class="quiet small" data-test="draws">{say("grp_draws", { base: number(base), n: count(draws), below: count(one.matched?.[3] ?? lower) })}{aside && kind !== "embedding" ? ` (${targetName(run.target!)})` : ""} {one.matched && say("grp_draws_any", { random: number(random), n: count(draws), lower: count(lower) })} {say("grp_moved", { sum: number(one.moved[1]), all: number(one.moved[0]) })}</p>
      {text && <div class={hasRibbon() ? "felt" : ""}><Inked info={text.info} values={one.turn} sign={false} test="turn" /></div>}
      <div class="sides">
        <table>
          <tr><td /><th>{what}</th><th class="ends"><span>{end(low)}</span><span>{end(high)}</span></th></tr>
          {groups.map((each, n) => (
            <tr key={n} class={each === one ? "pin" : ""} onClick={() => { state.group.value = n; }}>
              <td><button class="plain" aria-pressed={each === one}>{groupName(each)}</button></td>
              <td>{number(each.value)}</td>
              <td><svg width={STRIP} height="14" aria-hidden="true">
                {each.matched && <path class="matched" d={`M${x(each.matched[0])} 12H${x(each.matched[2])}`} />}
                <path class="drawn" d={`M${x(each.drawn[0])} 7H${x(each.drawn[2])}`} /><path d={`M${x(each.drawn[1])} 2v10`} />
                <circle cx={x(each.value)} cy="7" r="4.5" />
              </svg></td>
            </tr>
          ))}
        </table>
        <Curve run={run} one={one} what={what} />
      </div>
      <p class="quiet small">{say("grp_key", { n: count(draws) })}</p>
      {hasModel.value && <p><button data-test="silence-group" onClick={() => choose({ ablate: one.heads.map((n) => [Math.floor(n / change[0].length), n % change[0].length]) })}>{say("grp_silence")}</button></p>}
    </div>
  );
}

/** The output with more and more heads silenced, those with most weight on the first token first, beside random orders. */
function Curve({ run, one, what }: { run: Run; one: Group; what: string }) {
  const { base, change, curve, random, groups, first } = run.result as Required<Result>;
  const [layers, heads] = [change.length, change[0].length];
  const values = [base, ...curve.map(([, value]) => value), ...random.flatMap(([, ...spread]) => spread.slice(0, 3)), one.value];
  const [low, high] = [Math.floor(10 * Math.min(...values)) / 10, Math.ceil(10 * Math.max(...values)) / 10];
  const x = (n: number): number => LEFT + ((WIDE - LEFT - RIGHT) * n) / (layers * heads);
  const y = (value: number): number => TOP + ((HIGH - TOP - BELOW) * (high - value)) / (high - low || 1);
  const line = (points: number[][], at = 1): string => [[0, base, base, base], ...points].map((point) => `${x(point[0]).toFixed(1)} ${y(point[at]).toFixed(1)}`).join("L");
  const [n, every] = [one.heads.length, heads * Math.ceil(layers / TICKS)];
  const right = n > (layers * heads) / 2;
  return (
    <figure class="curve">
      <svg width={WIDE} height={HIGH} role="img" aria-label={`${say("grp_curve")}: ${curve.map(([at, value]) => `${at}: ${short(value)}`).join(", ")}`}>
        {[low, (low + high) / 2, high].map((value) => <><path class="line" d={`M${LEFT} ${y(value)}H${WIDE - RIGHT}`} /><text x={LEFT - 4} y={y(value) + 4} text-anchor="end">{end(value)}</text></>)}
        {Array.from({ length: Math.floor((layers * heads) / every) + 1 }, (_, at) => <text x={x(at * every)} y={HIGH - BELOW + 15} text-anchor="middle">{at * every}</text>)}
        <path class="band" d={`M${line(random)}L${line(random, 3).split("L").reverse().join("L")}Z`} /><path d={`M${line(random, 2)}`} />
        <path class="most" d={`M${line(curve)}`} />
        <path class="here" d={`M${x(n)} ${TOP}V${HIGH - BELOW}`} /><circle cx={x(n)} cy={y(one.value)} r="5" />
        <text class="pin" x={x(n) + (right ? -8 : 8)} y={y(one.value) + (one === groups[0] ? -8 : 16)} text-anchor={right ? "end" : "start"}>{n}: {number(one.value)}</text>
        <text x={WIDE - RIGHT} y={HIGH - 3} text-anchor="end">{say("grp_axes", { what })}</text>
      </svg>
      <figcaption class="quiet small"><b>{say("grp_curve")}</b> {say("grp_curve_says", { token: first })}</figcaption>
    </figure>
  );
}
