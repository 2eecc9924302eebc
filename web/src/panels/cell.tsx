// One query meets one key: five numbers on a line, and, opened, every step from q and k to what the head writes.
import { useEffect, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { engine } from "../trace/engine";
import type { Chain } from "../trace/chain";
import { largestPlaces } from "../trace/strongest";
import { written, type Written } from "../away";
import { start } from "../remote";
import { cutEdge } from "./causes";
import { Fill } from "./bar";
import { Text } from "./name";
import { number, percent, say, tell } from "../words";
import * as state from "../state";
import type { Label } from "../shown";
import { at, column, doc, headLabel, rested, row, shown } from "../store";

/** Open the chain; then go through it step by step; after the last, show all of it. */
export function nextStep(): void {
  if (!state.chain.value) state.chain.value = true;
  else state.step.value = state.step.value >= state.STEPS ? 0 : state.step.value + 1;
}

/** Keys beside the pinned one in the list of weights. */
const LISTED = 7;
/** Products whose numbers are written. */
const BANDS = 3;

/** A number as a formula has it. */
const brief = (value: number): string => number(value, Math.abs(value) >= 10 ? 2 : 3);

interface Found { chain: Chain; key: string; wrote: Written }

export function Cell() {
  const info = doc.value?.info;
  const words = shown.value;
  const { row: r, column: c } = rested.value;
  const [current, setCurrent] = useState<Found | null>(null);
  const { layer, head } = at.value;
  const [i, j] = [r === null ? undefined : words?.rows[r]?.tokens[0], c === null ? undefined : words?.columns[c]?.tokens[0]];
  const key = `${doc.value?.id}/${layer}/${head}/${i}/${j}`;
  useEffect(() => {
    if (!doc.value || i === undefined || j === undefined) return;
    const opened = doc.value;
    engine.ask("chain", { trace: opened.id, layer, head, i, j }, "chain")
      .then(async (chain) => setCurrent({ chain, key, wrote: await written(opened, layer, head, i, j) }))
      .catch(() => undefined);
  }, [key]);
  if (!info || !words) return null;
  const ready = r !== null && c !== null && i !== undefined && j !== undefined && current?.key === key ? current : null;
  // without a pinned cell this is one line, whatever the pointer rests on
  if (row.value === null || column.value === null || r === null || c === null) {
    return (
      <section class="panel cell empty" aria-label={say("cell")}>
        {ready && r !== null && c !== null
          ? <p class="one" data-test="cell-line"><Text of={words.rows[r]} /> → <Text of={words.columns[c]} /> <span>{ready.chain.masked ? say("cell_masked") : say("cell_line", {
            dot: number(ready.chain.dot, 2), score: number(ready.chain.score, 3), weight: number(ready.chain.weight, 4),
          })}</span></p>
          : <p class="one" title={say("cell_pick")}>{say("cell_pick")}</p>}
      </section>
    );
  }
  if (i === undefined || j === undefined || !current) return <section class="panel cell" aria-label={say("cell")} aria-busy="true" />;
  const props = { found: current, from: words.rows[r], to: words.columns[c], j };
  return state.chain.value ? <Opened {...props} /> : <Line {...props} />;
}

interface Shown { found: Found; from: Label; to: Label; j: number }

const Pair = ({ from, to }: { from: Label; to: Label }) => (
  tell("from_to", { token: <Text of={from} class="pin" />, text: <Text of={to} class="pin" /> })
);

/** The five numbers. */
function Line({ found: { chain, wrote: { norm, share } }, from, to }: Shown) {
  const info = doc.value!.info;
  const numbers: [string, string, string | undefined][] = chain.masked ? [] : [
    [number(chain.dot, 2), say("n_dot", { d: info.dHead }), undefined],
    [number(chain.score, 3), standard(info, at.value.layer) ? say("n_score", { d: info.dHead }) : say("n_scaled", { scale: number(chain.scale, 4) }), "score"],
    [number(chain.weight), say("n_weight", { n: info.keys.tokens.length }), "weight"],
    ...(norm === undefined ? [] : [[number(norm * chain.weight, 2), say("n_written"), "wrote"] as [string, string, string]]),
    ...(share === undefined ? [] : [[percent(share), say("n_share", { n: info.layerNumbers[at.value.layer] }), "layer-share"] as [string, string, string]]),
  ];
  return (
    <section class="panel cell line" aria-label={say("cell")}>
      <h2 data-test="cell">{say("how_weight", { weight: number(chain.weight, 2) })}<small><Pair from={from} to={to} />, {say("layer_head_short", { head: headLabel(info, at.value.layer, at.value.head) })}</small></h2>
      {chain.masked && <p>{say("cell_masked")}</p>}
      <ol class="numbers5">{numbers.map(([value, says, test]) => <li key={says}><b data-test={test}>{value}</b><small>{says}</small></li>)}</ol>
      <span class="row">
        {start.value.home === "server" && <button onClick={cutEdge} data-test="cut-edge">{say("causes_cut")}</button>}
        <button class="strong" data-test="open-chain" onClick={nextStep}>{say("open_chain")} <kbd>⏎</kbd></button>
      </span>
    </section>
  );
}

const standard = (info: { layers: { scale: number }[]; dHead: number }, layer: number): boolean => Math.abs(info.layers[layer].scale - 1 / Math.sqrt(info.dHead)) < 1e-6;

/** Every step, over everything below the sentence. */
function Opened({ found: { chain, wrote: { norm, size, share } }, from, to, j }: Shown) {
  const info = doc.value!.info;
  const words = shown.value!;
  const rule = info.layers[at.value.layer];
  const d = info.dHead;
  const dModel = info.anatomy?.sizes.d_model;
  const steps = state.step.value === 0 ? state.STEPS : state.step.value;
  const strongest = Array.from(chain.product.keys()).sort((a, b) => Math.abs(chain.product[b]) - Math.abs(chain.product[a])).slice(0, BANDS);
  const listed = largestPlaces(chain.weights, LISTED);
  if (!listed.includes(j)) listed[listed.length - 1] = j;
  const rest = chain.weights.reduce((sum, x) => sum + x, 0) - listed.reduce((sum, n) => sum + chain.weights[n], 0);
  const label = (token: number): string => info.keys.labels[token].replace(/^·/u, "");
  const pieces = [from, to].find((one) => one.tokens.length > 1);
  const agree = chain.product.reduce((sum, value) => sum + Number(value > 0), 0);
  const alone = strongest.reduce((sum, n) => sum + chain.product[n], 0);
  const note = pieces ? say("s_piece", { token: pieces.text, n: pieces.tokens.length }) : rule.stage === "rotated" ? say("stage_rotated") : rule.stage === "scaled" ? say("stage_scaled") : words.renormalised || state.normed.value ? say("s_raw") : "";
  const scaled = standard(info, at.value.layer);
  const open = { of: steps };
  const bands = { bands: strongest };
  return (
    <section class="panel cell chain" aria-label={say("cell")}>
      <div class="row spread">
        <h1 data-test="cell">{say("layer_head_short", { head: headLabel(info, at.value.layer, at.value.head) })}, <Pair from={from} to={to} />: <b>{number(chain.weight)}</b></h1>
        <span class="row">
          <button onClick={nextStep} data-test="step">{state.step.value === 0 ? say("walk") : state.step.value < state.STEPS ? say("walk_at", { n: state.step.value, of: state.STEPS }) : say("step_all")} <kbd>⏎</kbd></button>
          {start.value.home === "server" && <button onClick={cutEdge} data-test="cut-edge">{say("causes_cut")}</button>}
          <button data-test="close-chain" onClick={() => { state.step.value = 0; state.chain.value = false; }}>{say("close")} <kbd>Esc</kbd></button>
        </span>
      </div>
      {note && <p class="quiet small">{note}</p>}
      <div class="steps">
        <div class="vectors">
          <Step n={1} {...open} title={say("s_q", { token: from.text })} says={say("s_q_says", { d })} formula={<math><mi>q</mi><mo>=</mo><mi>x</mi><msub><mi>W</mi><mi mathvariant="normal">Q</mi></msub></math>}>
            <Bars values={chain.q} {...bands} kind="q" />
          </Step>
          <Step n={2} {...open} title={say("s_k", { token: to.text })} says={say("s_k_says", { d })} formula={<math><mi>k</mi><mo>=</mo><mi>x</mi><msub><mi>W</mi><mi mathvariant="normal">K</mi></msub></math>}>
            <Bars values={chain.k} {...bands} kind="k" />
          </Step>
          <Step n={3} {...open} title={say("s_product")} says={say("s_agree", { n: agree, d })}
            formula={<math><mi>q</mi><mo>·</mo><mi>k</mi><mo>=</mo><munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>0</mn></mrow><mn>{d - 1}</mn></munderover><msub><mi>q</mi><mi>i</mi></msub><msub><mi>k</mi><mi>i</mi></msub><mo>=</mo><mn data-test="dot">{brief(chain.dot)}</mn></math>}>
            <Bars values={chain.product} {...bands} kind="p" axis />
            <p>{say("s_alone", { places: strongest.join(", "), terms: strongest.map((n) => number(chain.product[n], 2)).join(" + ").replace(/\+ −/g, "− "), sum: number(alone, 2), dot: number(chain.dot, 2) })}</p>
          </Step>
        </div>
        <div class="rest">
          <Step n={4} {...open} title={say("s_dot")} says={scaled ? say("s_dot_says") : say("s_dot_says_plain", { scale: number(chain.scale, 5) })}
            formula={<math><mi>s</mi><mo>=</mo>{scaled
              ? <><mfrac><mrow><mi>q</mi><mo>·</mo><mi>k</mi></mrow><msqrt><mn>{d}</mn></msqrt></mfrac><mo>=</mo><mfrac><mn>{brief(chain.dot)}</mn><mn>{number(Math.sqrt(d), 2)}</mn></mfrac></>
              : <><mn>{brief(chain.dot)}</mn><mo>×</mo><mn>{number(chain.scale, 4)}</mn></>}{chain.terms.length > 0 && <><mo>+</mo><mn>{number(chain.terms.reduce((sum, { value }) => sum + value, 0), 3)}</mn></>}
            <mo>=</mo>{chain.masked ? <mi>−∞</mi> : <mn data-test="score">{number(chain.score, 4)}</mn>}</math>}>
            {chain.bias !== 0 && <p>{say("s_bias", { bias: number(chain.bias, 3) })}</p>}
            {chain.terms.length > 0 && <table class="terms"><tbody>{chain.terms.map(({ name, value }) => (
              <tr key={name}><td class="quiet">{say(`t_${name}`)}</td><td>{value < 0 ? "−" : "+"} {number(Math.abs(value), 3)}</td></tr>
            ))}</tbody></table>}
            {chain.cap !== null && <p>{say("t_cap", { cap: number(chain.cap, 1) })}</p>}
            {chain.masked && <p>{say("cell_masked")}</p>}
          </Step>
          <Step n={5} {...open} title={say("s_softmax")} says={say("s_softmax_says", { n: info.keys.tokens.length - 1 })}
            formula={<math><mi>p</mi><mo>=</mo><mfrac><msup><mi>e</mi><mi>s</mi></msup><mrow><munder><mo>∑</mo><mi>j</mi></munder><msup><mi>e</mi><msub><mi>s</mi><mi>j</mi></msub></msup></mrow></mfrac><mo>=</mo><mn data-test="weight">{number(chain.weight, 4)}</mn></math>}>
            <table class="terms"><thead><tr><th>{say("t_key_word")}</th><th>{say("t_score")}</th><td /><th>{say("t_weight")}</th></tr></thead><tbody>{listed.map((n) => (
              <tr key={n} class={n === j ? "chosen" : ""}>
                <td class="who"><bdi>{label(n)}</bdi></td><td>{chain.scores[n] > -1e30 ? number(chain.scores[n], 2) : "–"}</td>
                <td class="bar"><Fill share={chain.weights[n]} /></td><td><b>{number(chain.weights[n])}</b></td>
              </tr>
            ))}
            {chain.weights.length > listed.length && <tr class="quiet"><td class="who">{say("rest", { n: chain.weights.length - listed.length })}</td><td /><td /><td>{number(rest)}</td></tr>}</tbody></table>
            {chain.sink !== null && <p>{say("t_sink", { share: percent(chain.sink) })}</p>}
          </Step>
          <Step n={6} {...open} title={say("s_value")} formula={<math><mi>p</mi><mi>v</mi></math>}
            says={chain.v ? say("s_value_says", { d: chain.v.length, token: to.text }) : say("s_value_none")}>
            {chain.v && <Bars values={chain.v.map((x) => x * chain.weight)} bands={[]} kind="v" />}
          </Step>
          <Step n={7} {...open} title={say("s_writes")} says={size !== undefined && share !== undefined
            ? say("s_writes_says", { token: from.text, n: number(size, 3), share: percent(share) })
            : say("s_writes_none")} formula={<math><mrow><mo>|</mo><mi>p</mi><mi>v</mi><msub><mi>W</mi><mi mathvariant="normal">O</mi></msub><mo>|</mo></mrow>
              {norm !== undefined && <><mo>=</mo><mn>{number(chain.weight)}</mn><mo>×</mo><mn data-test="norm">{number(norm, 3)}</mn><mo>=</mo><mn>{number(norm * chain.weight, 3)}</mn></>}</math>}>
            {dModel !== undefined && norm !== undefined && <p class="quiet small">{say("s_added", { d: dModel, token: from.text })}</p>}
          </Step>
        </div>
      </div>
    </section>
  );
}

function Step({ n, of, title, formula, says, children }: {
  n: number; of: number; title: string; formula: ComponentChildren; says: string; children: ComponentChildren;
}) {
  const open = n <= of;
  return (
    <article class={`step${open ? "" : " shut"}${n === of && state.step.value ? " latest" : ""}`} aria-hidden={!open}>
      <header><i>{n}</i>{formula}<h2>{title}</h2><small class="quiet">{says}</small></header>
      {children}
    </article>
  );
}

/** Where labels stand: each at its bar, and as far from the next as one is wide. */
function apart(bars: number[], of: number, wide: string): string[] {
  const sorted = [...bars].sort((a, b) => a - b);
  let last = "";
  const places = sorted.map((n) => (last = `${last && `max(${last} + ${wide}, `}${(100 * (n + 0.5)) / of}%${last && ")"}`));
  last = "100%";
  for (let n = places.length - 1; n >= 0; n--) {
    places[n] = `min(${last}, ${places[n]})`;
    last = `${places[n]} - ${wide}`;
  }
  return bars.map((bar) => places[sorted.indexOf(bar)]);
}

/** Numbers as bars above and below a line, the larger of them with their numbers; each row ends at its own largest. */
export function Bars({ values, bands, kind, axis = false }: { values: Float32Array; bands: number[]; kind: string; axis?: boolean }) {
  const all = Array.from(values);
  const most = Math.max(...all.map(Math.abs), 1e-9);
  const [up, down] = [Math.max(0, ...all) / most, Math.max(0, ...all.map((value) => -value)) / most];
  const zero = (100 * up) / (up + down || 1);
  const path = (sign: number, only: boolean): string => all.map((value, n) => {
    if (value * sign <= 0 || bands.includes(n) !== only) return "";
    const high = ((value / most) * 100) / (up + down);
    return `M${n + 0.08} ${zero.toFixed(2)}v${(-high).toFixed(2)}h0.84v${high.toFixed(2)}z`;
  }).join("");
  return (
    <div class={`bars ${kind}`}>
      {bands.map((n) => <i key={n} class="band" style={{ left: `${(100 * n) / values.length}%`, width: `${100 / values.length}%` }} />)}
      <svg viewBox={`0 0 ${values.length} 100`} preserveAspectRatio="none" aria-hidden="true">
        <path class={`more${bands.length ? " pale" : ""}`} d={path(1, false)} /><path class={`less${bands.length ? " pale" : ""}`} d={path(-1, false)} />
        <path class="more" d={path(1, true)} /><path class="less" d={path(-1, true)} />
      </svg>
      <hr style={{ top: `${zero}%` }} />
      {apart(bands, values.length, "6.5ch").map((left, at) => <b key={at} class={values[bands[at]] < 0 ? "below" : ""} style={{ left, top: `${zero}%` }}>{number(values[bands[at]], 2)}</b>)}
      {axis && apart(bands, values.length, "2.5ch").map((left, at) => <small key={at} style={{ left }}>{bands[at]}</small>)}
    </div>
  );
}
