// One query meets one key: every step from q and k to the weight and to what the head writes, with the real numbers.
import { useEffect, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { engine } from "../trace/engine";
import type { Chain } from "../trace/chain";
import { largestPlaces } from "../trace/strongest";
import { written, type Written } from "../away";
import { start } from "../remote";
import { cutEdge } from "./causes";
import { Fill } from "./bar";
import { number, percent, say } from "../words";
import * as state from "../state";
import { at, column, doc, rested, row, shown } from "../store";

/** Go to the next step of the chain; after the last, show all of them. */
export function nextStep(): void {
  state.step.value = state.step.value >= state.STEPS ? 1 : state.step.value + 1;
}

/** Three or four digits, because a step has little space. */
const brief = (value: number): string => number(value, Math.abs(value) >= 10 ? 1 : 2);

export function Cell() {
  const info = doc.value?.info;
  const words = shown.value;
  const { row: r, column: c } = rested.value;
  const [current, setCurrent] = useState<{ chain: Chain; key: string; wrote: Written } | null>(null);
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
  const rule = info.layers[layer];
  const d = info.dHead;
  const standardScale = Math.abs(rule.scale - 1 / Math.sqrt(d)) < 1e-6;
  const dModel = info.anatomy?.sizes.d_model;
  const formulas = [
    <>q<sub>i</sub> <em>({d},)</em></>,
    <>k<sub>j</sub> <em>({d},)</em></>,
    <>q<sub>i</sub> ⊙ k<sub>j</sub> <em>({d},)</em></>,
    <>s<sub>ij</sub>=q<sub>i</sub>·k<sub>j</sub>{standardScale ? <>/√{d}</> : <>·scale</>}{(current?.chain.terms.length ?? 0) > 0 && <> + …</>}</>,
    <>p<sub>ij</sub> = e<sup>s − lse</sup></>,
    <>p<sub>ij</sub> v<sub>j</sub></>,
    <>c<sub>i</sub> W<sub>O</sub>{dModel && <em> ({dModel},)</em>}</>,
  ];
  const titles = (query: string, key: string): string[] => [
    say("s_q", { token: query }), say("s_k", { token: key }), say("s_product"), say("s_dot"), say("s_softmax"), say("s_value"), say("s_writes"),
  ];
  const ready = r !== null && c !== null && i !== undefined && j !== undefined && current?.key === key ? current : null;
  // without a pinned cell this is one line, whatever the pointer rests on
  if (row.value === null || column.value === null || r === null || c === null) {
    return (
      <section class="panel cell empty" aria-label={say("cell")}>
        {ready && r !== null && c !== null
          ? <p class="one" data-test="cell-line"><bdi title={words.rows[r].text}>{words.rows[r].text}</bdi> → <bdi title={words.columns[c].text}>{words.columns[c].text}</bdi> <span>{ready.chain.masked ? say("cell_masked") : say("cell_line", {
            dot: number(ready.chain.dot, 2), score: number(ready.chain.score, 3), weight: number(ready.chain.weight, 4),
          })}</span></p>
          : <p class="one" title={say("cell_pick")}>{say("cell_pick")}</p>}
      </section>
    );
  }
  if (i === undefined || j === undefined || !current) return <section class="panel cell" aria-label={say("cell")} aria-busy="true" />;
  const { chain, wrote: { norm, size, share } } = current;
  const [from, to] = [words.rows[r], words.columns[c]];
  const named = titles(from.text, to.text);
  const steps = state.step.value === 0 ? state.STEPS : state.step.value;
  const most = Math.max(...chain.q.map(Math.abs), ...chain.k.map(Math.abs), 1e-9);
  const many = Math.max(...chain.product.map(Math.abs), 1e-9);
  const strongest = Array.from(chain.product.keys()).sort((a, b) => Math.abs(chain.product[b]) - Math.abs(chain.product[a])).slice(0, 3);
  const listed = largestPlaces(chain.weights, 4);
  if (!listed.includes(j)) listed[listed.length - 1] = j;
  const label = (token: number): string => info.keys.labels[token].replace(/^·/u, "");
  const pieces = [from, to].find((label) => label.tokens.length > 1);
  const carried = chain.v?.map((x) => x * chain.weight);
  return (
    <section class="panel cell" aria-label={say("cell")}>
      <div class="row spread tools">
        <h2 data-test="cell"><span>{say("cell")}</span> <bdi title={from.text}>{from.text}</bdi> → <bdi title={to.text}>{to.text}</bdi> <b>{number(chain.weight, 4)}</b></h2>
        <span class="quiet small">{pieces ? say("s_piece", { token: pieces.text, n: pieces.tokens.length }) : rule.stage === "rotated" ? say("stage_rotated") : rule.stage === "scaled" ? say("stage_scaled") : words.renormalised || state.normed.value ? say("s_raw") : ""}</span>
        <span class="row">
          {start.value.home === "server" && <button onClick={cutEdge} data-test="cut-edge">{say("causes_cut")}</button>}
          <button onClick={nextStep} data-test="step">{say(state.step.value === 0 ? "step_first" : "step_next")}</button>
          <button disabled={state.step.value === 0} onClick={() => { state.step.value = 0; }}>{say("step_all")}</button>
        </span>
      </div>
      <div class="steps">
        <Step n={1} of={steps} title={named[0]} formula={formulas[0]} says={say("s_q_says", { token: from.text, d })}>
          <Bars values={chain.q} most={most} kind="q" />
        </Step>
        <Step n={2} of={steps} title={named[1]} formula={formulas[1]} says={say("s_k_says", { token: to.text, d })}>
          <Bars values={chain.k} most={most} kind="k" />
        </Step>
        <Step n={3} of={steps} title={named[2]} formula={formulas[2]} says={say("s_product_says")}>
          <Bars values={chain.product} most={many} kind="p" />
          <table class="terms"><tbody>{strongest.map((n) => (
            <tr key={n}><td class="quiet">n={n}</td><td>{brief(chain.q[n])} x {brief(chain.k[n])}</td><td>= {brief(chain.product[n])}</td></tr>
          ))}</tbody></table>
        </Step>
        <Step n={4} of={steps} title={named[3]} formula={formulas[3]}
          says={standardScale ? say("s_dot_says", { d }) : say("s_dot_says_plain", { scale: number(chain.scale, 5) })}>
          <p class="sum">Σ = <b>{number(chain.dot, 3)}</b></p>
          <p class="sum">{standardScale ? <>x 1/√{d}</> : <>x {number(chain.scale, 4)}</>}{chain.bias !== 0 && <> {say("s_bias", { bias: number(chain.bias, 3) })}</>}</p>
          {chain.terms.length > 0 && <table class="terms" data-test="score-terms"><tbody>{chain.terms.map(({ name, value }) => (
            <tr key={name}><td class="quiet">{say(`t_${name}`)}</td><td>{value < 0 ? "−" : "+"} {number(Math.abs(value), 3)}</td></tr>
          ))}</tbody></table>}
          {chain.cap !== null && <p class="sum">{say("t_cap", { cap: number(chain.cap, 1) })}</p>}
          <p class="sum">{chain.masked ? say("s_masked") : <>s = <b data-test="score">{number(chain.score, 4)}</b></>}</p>
        </Step>
        <Step n={5} of={steps} title={named[4]} formula={formulas[4]} says={say("s_softmax_says", { lse: number(chain.lse, 4) })}>
          <table class="terms"><tbody>{listed.map((n) => (
            <tr key={n} class={n === j ? "chosen" : ""}>
              <td class="who" title={label(n)}><bdi>{label(n)}</bdi></td><td class="quiet">e^({brief(chain.scores[n])} − {brief(chain.lse)})</td>
              <td class="bar"><Fill share={chain.weights[n]} /></td>
              <td><b data-test={n === j ? "weight" : undefined}>{number(chain.weights[n], 4)}</b></td>
            </tr>
          ))}</tbody></table>
          {chain.sink !== null && <p class="sum">{say("t_sink", { share: percent(chain.sink) })}</p>}
        </Step>
        <Step n={6} of={steps} title={named[5]} formula={<>{formulas[5]} <em>({chain.v?.length ?? d},)</em></>}
          says={chain.v ? say("s_value_says", { d: chain.v.length, token: to.text }) : say(start.value.home === "notebook" ? "s_value_none_notebook" : "s_value_none")}>
          {carried && chain.v && <Bars values={carried} most={Math.max(...chain.v.map(Math.abs), 1e-9)} kind="v" />}
          <p class="sum">{norm !== undefined ? say("s_value_norm", { n: number(norm, 3) }) : " "}</p>
        </Step>
        <Step n={7} of={steps} title={named[6]} formula={formulas[6]}
          says={size !== undefined && share !== undefined
            ? say("s_writes_says", { token: from.text, n: number(size, 3), share: percent(share) })
            : say("s_writes_none")}>
          {share !== undefined && <>
            <p class="sum"><b>{percent(share)}</b></p>
            <div class="bar wide"><Fill share={share} /></div>
          </>}
        </Step>
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
      <header><i>{n}</i><span class="formula">{formula}</span></header>
      <h3 title={title}>{title}</h3>
      {children}
      <p class="quiet small">{says}</p>
    </article>
  );
}

/** Numbers as bars above and below a line. */
export function Bars({ values, most, kind }: { values: Float32Array; most: number; kind: string }) {
  const width = 128;
  const height = 44;
  const wide = width / values.length;
  let up = "";
  let down = "";
  values.forEach((value, n) => {
    const share = Math.abs(value) / most;
    if (Number.isNaN(share)) return;
    const y = (Math.min(1, share) * height) / 2;
    const part = `M${(n * wide).toFixed(2)} ${height / 2}v${(value < 0 ? y : -y).toFixed(2)}h${(wide * 0.8).toFixed(2)}v${(value < 0 ? -y : y).toFixed(2)}z`;
    if (value < 0) down += part;
    else up += part;
  });
  return (
    <svg class={`bars ${kind}`} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={Array.from(values, (x) => x.toFixed(2)).join(" ")}>
      <line x1="0" x2={width} y1={height / 2} y2={height / 2} />
      <path class="up" d={up} /><path class="down" d={down} />
      <text x={width} y="7" text-anchor="end">±{number(most, 2)}</text>
    </svg>
  );
}
