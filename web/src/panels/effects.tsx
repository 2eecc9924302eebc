// The effects of changing each head in turn: a sentence, all heads in order of effect, and weight against effect.
import { signed, targetName, type Run } from "../model/ask";
import { placeOf } from "../state/comparing";
import { choose } from "../heads/ranking";
import * as state from "../state/state";
import { pinnedWeights } from "../heads/pinned";
import { at, doc, headLabel, row, column, shown } from "../state/store";
import { count, number, percent, say } from "../words";
import { end as scaleEnd, short } from "./slots";

interface Effect {
  layer: number;
  head: number;
  value: number;
}

/** Heads that the bars' description names. */
const NAMED = 7;
/** Below this share of the greatest, an effect is called almost none. */
const SMALL = 0.01;
const [WIDE, HIGH, LEFT, BELOW] = [260, 170, 44, 32];

const name = ({ layer, head }: Effect): string => `${layer}.${head}`;

/** All heads, those of the greatest effect first. */
export const inOrder = (change: number[][]): Effect[] =>
  change.flatMap((heads, layer) => heads.map((value, head): Effect => ({ layer, head, value }))).sort((a, b) => Math.abs(b.value) - Math.abs(a.value));

export function EachHead({ run }: { run: Run }) {
  const { change, base } = run.result;
  const order = inOrder(change);
  const [first] = order;
  const aside = run.result.aside?.[first.layer]?.[first.head];
  const most = Math.abs(first.value);
  const sum = order.reduce((total, { value }) => total + Math.abs(value), 0);
  const small = order.filter(({ value }) => Math.abs(value) < SMALL * most).length;
  return (
    <>
      <h2 class="headline">{most === 0 ? say("eff_nothing") : say("eff_headline", { head: name(first), what: targetName(run.target!), change: `${number(base + first.value)} (${signed(first.value)})` })}{run.target?.aside && aside !== undefined ? ` · ${say(`aside_${run.target.aside}`)} ${number(aside)}` : ""}</h2>
      <p class="quiet small">{say("eff_base", { base: number(base), n: count(order.length) })}{run.target?.kind === "embedding" ? ` · ${say("eff_projection")}` : ""}</p>
      {most > 0 && <>
        <Bars order={order} />
        <p class="quiet small">{say("eff_scale")} · {say("eff_small", { n: count(small), least: number(SMALL * most) })}</p>
        <p class="quiet small">{say("eff_layers")} {change.map((heads, layer) => `${layer}: ${percent(heads.reduce((total, value) => total + Math.abs(value), 0) / sum)}`).join(" · ")}</p>
        {run.base === doc.value?.remote && <Scatter order={order} most={most} />}
      </>}
    </>
  );
}

const isHere = (effect: Effect): boolean => headLabel(doc.value!.info, at.value.n) === name(effect);

/** Look at a head of the text in view, if it has it. */
function look(effect: Effect | undefined): void {
  const { info } = doc.value!;
  const place = effect && placeOf(info, effect.layer, effect.head);
  if (place) choose(info, place.n);
}

/** A bar for each head, from the least to the most: up for more and down for less.
 *
 * The ends are named at the line, the head in view at the edge that is farther from the line: no name lies on another.
 */
export function Bars({ order: bySize }: { order: Effect[] }) {
  const order = [...bySize].sort((a, b) => a.value - b.value);
  const most = Math.abs(bySize[0].value) || 1;
  const height = (value: number): number => Math.sqrt(Math.abs(value) / most);
  const [up, down] = [1, -1].map((sign) => Math.max(...order.map(({ value }) => (Math.sign(value) === sign ? height(value) : 0))));
  const zero = (100 * down) / (up + down);
  return (
    <div class="effects" role="img" data-order={bySize.map(name).join(" ")} aria-label={bySize.slice(0, NAMED).map((effect) => `${name(effect)} ${signed(effect.value)}`).join(", ")}
      onClick={(event) => {
        const box = event.currentTarget.getBoundingClientRect();
        look(order[Math.floor(((event.clientX - box.left) / box.width) * order.length)]);
      }}>
      {order.map((effect, place) => {
        const { value } = effect;
        const [here, size] = [isHere(effect), (100 * height(value)) / (up + down)];
        const isEnd = place === 0 || place === order.length - 1;
        const above = isEnd ? value < 0 : zero <= 50;
        const from = isEnd ? (above ? zero : 100 - zero) : 100;
        return (
          <span key={name(effect)} class={`${here ? "here " : ""}${value < 0 ? "less " : ""}${place < order.length / 2 ? "" : "last"}`} data-value={value} title={`${name(effect)}: ${signed(value)}`}>
            <i style={{ [value < 0 ? "top" : "bottom"]: `${value < 0 ? 100 - zero : zero}%`, height: `${size}%` }} />
            {(here || isEnd) && <b style={{ [above ? "bottom" : "top"]: `calc(${from}% + 3px)` }}>{name(effect)} {signed(value)}</b>}
          </span>
        );
      })}
      <hr style={{ bottom: `${zero}%` }} />
    </div>
  );
}

/** The weight of the pinned cell in every head, against the head's effect. */
function Scatter({ order, most }: { order: Effect[]; most: number }) {
  const info = doc.value!.info;
  const weights = pinnedWeights.value;
  if (!weights) return null;
  const points = order.flatMap((effect, rank) => {
    const place = placeOf(info, effect.layer, effect.head);
    return place ? [{ ...effect, rank: rank + 1, weight: weights[place.n] }] : [];
  });
  const strongest = points.reduce((best, point) => (point.weight > best.weight ? point : best), points[0]);
  const end = state.normed.value ? Math.max(strongest.weight, 1e-9) : 1;
  const [x, y] = [(point: { weight: number }): number => LEFT + (WIDE - LEFT - 12) * (point.weight / end), ({ value }: { value: number }): number => HIGH - BELOW - (HIGH - BELOW - 14) * Math.sqrt(Math.abs(value) / most)];
  const words = { token: shown.value!.rows[row.value!].text, text: shown.value!.columns[column.value!].text };
  return (
    <figure class="scatter">
      <svg width={WIDE} height={HIGH} role="img" aria-label={say("eff_weight")}>
        <path d={`M${LEFT} 6V${HIGH - BELOW}H${WIDE - 4}`} />
        {[0, 0.5, 1].map((at) => {
          const [across, down] = [x({ weight: at * end }), y({ value: at * at * most })];
          return <g key={at} class="axes"><path d={`M${across} ${HIGH - BELOW}v4M${LEFT - 4} ${down}h4`} /><text x={across} y={HIGH - 15} text-anchor="middle">{scaleEnd(at * end)}</text><text x={LEFT - 6} y={down + 4} text-anchor="end">{short(at * at * most, most)}</text></g>;
        })}
        {points.map((point) => <circle key={name(point)} class={isHere(point) ? "here" : ""} cx={x(point)} cy={y(point)} r={isHere(point) ? 4 : 2.5} onClick={() => look(point)}><title>{`${name(point)}: ${number(point.weight)}, ${signed(point.value)}`}</title></circle>)}
        {[points[0], ...(strongest === points[0] ? [] : [strongest])].map((point) => (
          <text key={name(point)} x={x(point) + (x(point) > WIDE / 2 ? -6 : 6)} y={y(point) + 4} text-anchor={x(point) > WIDE / 2 ? "end" : "start"}>{name(point)}</text>
        ))}
        <text class="axes" x={WIDE - 4} y={HIGH - 3} text-anchor="end">{say("eff_axes")}</text>
      </svg>
      <figcaption><b>{say("eff_weight")}</b> {say("eff_weight_says", { ...words, head: name(strongest), weight: number(strongest.weight), rank: strongest.rank, all: count(points.length), change: signed(strongest.value) })}</figcaption>
    </figure>
  );
}
