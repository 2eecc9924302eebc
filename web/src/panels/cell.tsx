// One query meets one key: five numbers on a line, and, opened, every step from q and k to what the head writes.
import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { engine } from "../trace/engine";
import type { Chain } from "../trace/chain";
import { largestPlaces } from "../trace/strongest";
import { written, type Written } from "../state/away";
import { hasModel } from "../model/remote";
import { cutEdge } from "./causes";
import { Fill, Numbers } from "./controls";
import { Text } from "./name";
import { isWord, number, percent, say, tell } from "../words";
import { remarks } from "../drawing/caption";
import { cellAt, wanted, wantedKey } from "../drawing/pictures";
import * as state from "../state/state";
import { spelled, type Label } from "../text/shown";
import { at, column, doc, headLabel, rested, row, shown } from "../state/store";

/** Open the chain; then go through it step by step; after the last, show all of it. */
export function nextStep(): void {
  if (!state.chain.value) state.chain.value = true;
  else state.step.value = state.step.value >= state.STEPS ? 0 : state.step.value + 1;
}

/** Keys beside the pinned one in the list of weights. */
const LISTED = 7;
/** Products whose numbers are written. */
const BANDS = 3;

/** The steps of one token's weight on another, their head, and the number that the picture has for the two: of whole words, for instance. */
interface Found { chain: Chain; key: string; wrote: Written; drawn: number; i: number; j: number; from: Label; to: Label; layer: number; n: number }

/** The token that the steps are of: the pinned one, or the first of its word. */
const stepped = (label: Label | undefined, pinned: number | null): number | undefined => label?.tokens[label.tokens.indexOf(pinned!)] ?? label?.tokens[0];

export function Cell() {
  const words = shown.value!;
  const { row: r, column: c } = rested.value;
  const found = useSignal<Found | null>(null);
  const current = found.value;
  const { layer, head, n } = at.value;
  const [i, j] = [r === null ? undefined : stepped(words.rows[r], state.query.value), c === null ? undefined : stepped(words.columns[c], state.key.value)];
  const now = { ...wanted.value!, mean: null };
  const key = `${wantedKey(now)}/${i}/${j}`;
  useEffect(() => {
    if (i === undefined || j === undefined) return;
    engine.ask("chain", { trace: now.doc.id, layer, head, i, j }, "chain")
      .then(async (chain) => { found.value = { chain, key, i, j, layer, n, from: words.rows[r!], to: words.columns[c!], drawn: await cellAt(now, r!, c!), wrote: await written(now.doc, layer, head, i, j) }; })
      .catch(() => undefined);
  }, [key]);
  const ready = current?.key === key ? current : null;
  // without a pinned cell this is one line, whatever the pointer rests on
  if (row.value === null || column.value === null) {
    return (
      <section class="panel cell empty" aria-label={say("cell")}>
        {ready
          ? <p class="one"><Text of={ready.from} /> → <Text of={ready.to} /> <span>{ready.chain.masked ? say("cell_masked") : say("cell_line", {
            dot: number(ready.chain.dot, 2), score: number(ready.chain.score), weight: number(ready.chain.weight),
          })} {ofTokens(ready)}</span></p>
          : <p class="one" title={say("cell_pick")}>{say("cell_pick")}</p>}
      </section>
    );
  }
  if (!current) return <section class="panel cell" aria-label={say("cell")} aria-busy="true" />;
  return state.chain.value ? <Opened {...current} /> : <Line {...current} />;
}

const W = ({ of }: { of: string }) => <msub><mi>W</mi><mi mathvariant="normal">{of}</mi></msub>;

/** Parts of a formula: numbers, names, and signs. */
const formula = (text: string) => text.split(" ").map((part) => (/\d/.test(part) ? <mn>{part}</mn> : /[a-z∞]/.test(part) ? <mi>{part}</mi> : <mo>{part}</mo>));

/** Which tokens the steps are of, where the picture's number is not their weight. */
function ofTokens({ chain: { weight, masked }, drawn, i, j }: Found): string {
  if (masked || !(Math.abs(drawn - weight) > 1e-3 * weight)) return "";
  const { queries, keys } = doc.value!.info;
  return say("s_drawn", { n: number(drawn), what: remarks().join("; "), token: spelled(queries, i), text: spelled(keys, j), weight: number(weight) });
}

const Pair = ({ from, to }: Found) => (
  tell("from_to", { token: <Text of={from} class="pin" />, text: <Text of={to} class="pin" /> })
);

const CutEdge = () => (hasModel.value ? <button onClick={cutEdge} data-test="cut-edge">{say("causes_cut")}</button> : null);

/** What the model adds to the scaled product, with its sign before it; nothing where it adds nothing. */
function added({ bias, terms }: Chain): string {
  const sum = terms.reduce((all, { value }) => all + value, bias);
  return sum === 0 ? "" : ` ${sum < 0 ? "−" : "+"} ${number(Math.abs(sum))}`;
}

/** The keys that the query may look at. */
const seen = ({ scores }: Chain): number[] => [...scores.keys()].filter((n) => scores[n] > -1e30);

/** The five numbers. */
function Line(found: Found) {
  const { chain, drawn, layer, n, wrote: { norm, share } } = found;
  const info = doc.value!.info;
  const how = `${standard(info, layer) ? `÷ √${info.dHead}` : `× ${number(chain.scale, 4)}`}${added(chain)}`;
  return (
    <section class="panel cell line" aria-label={say("cell")}>
      <h2 data-test="cell">{say("how_weight", { weight: number(drawn) })}<small><Pair {...found} />, {say("layer_head_short", { head: headLabel(info, n) })}</small></h2>
      {chain.masked && <p>{say("cell_masked")}</p>}
      <p class="quiet small">{ofTokens(found)}</p>
      {!chain.masked && <Numbers of={[
        ["product", number(chain.dot, 2), say("n_dot", { d: info.dHead })],
        ["score", number(chain.score), say("n_score", { how })],
        ["weight", number(chain.weight), say("n_weight", { n: seen(chain).length })],
        ["wrote", norm === undefined ? "" : number(norm * chain.weight, 2), say("n_written")],
        ["layer-share", share === undefined ? "" : percent(share), say("n_share", { n: info.layerNumbers[layer] })],
      ]} />}
      <span class="row">
        <CutEdge />
        <button class="strong" data-test="open-chain" onClick={nextStep}>{say("open_chain")} <kbd>⏎</kbd></button>
      </span>
    </section>
  );
}

const standard = (info: { layers: { scale: number }[]; dHead: number }, layer: number): boolean => Math.abs(info.layers[layer].scale - 1 / Math.sqrt(info.dHead)) < 1e-6;

/** Every step, over everything below the sentence. */
function Opened(found: Found) {
  const { chain, drawn, i, j, layer, wrote: { norm, size, share } } = found;
  const info = doc.value!.info;
  const rule = info.layers[layer];
  const d = info.dHead;
  const dModel = info.anatomy?.sizes.d_model;
  const steps = state.step.value === 0 ? state.STEPS : state.step.value;
  const strongest = Array.from(chain.product.keys()).sort((a, b) => Math.abs(chain.product[b]) - Math.abs(chain.product[a])).slice(0, BANDS);
  const others = seen(chain).filter((n) => n !== j);
  const listed = largestPlaces(chain.weights, LISTED).filter((n) => n === j || others.includes(n));
  if (!listed.includes(j)) listed[Math.min(listed.length, LISTED - 1)] = j;
  const unlisted = others.length + 1 - listed.length;
  const rest = chain.weights.reduce((sum, x) => sum + x, 0) - listed.reduce((sum, n) => sum + chain.weights[n], 0);
  const [query, key] = [spelled(info.queries, i), spelled(info.keys, j)];
  const agree = chain.product.reduce((sum, value) => sum + Number(value > 0), 0);
  const alone = strongest.reduce((sum, n) => sum + chain.product[n], 0);
  const stage = `stage_${rule.stage}`;
  const scaled = standard(info, layer);
  const open = { of: steps };
  const bands = { bands: strongest };
  return (
    <section class="panel cell chain" aria-label={say("cell")}>
      <div class="row spread">
        <h1 data-test="cell">{say("layer_head_short", { head: headLabel(info, found.n) })}, <Pair {...found} />: <b>{number(drawn)}</b></h1>
        <span class="row">
          <button onClick={nextStep} data-test="step">{state.step.value === 0 ? say("walk") : state.step.value < state.STEPS ? say("walk_at", { n: state.step.value, of: state.STEPS }) : say("step_all")} <kbd>⏎</kbd></button>
          <CutEdge />
          <button data-test="close-chain" onClick={() => { state.step.value = 0; state.chain.value = false; }}>{say("close")} <kbd>Esc</kbd></button>
        </span>
      </div>
      <p class="quiet small">{ofTokens(found)} {isWord(stage) && say(stage)}</p>
      <div class="steps">
        <div class="vectors">
          <Step n={1} {...open} title={say("s_q", { token: query })} says={say("s_q_says", { d })} formula={<math>{formula("q = x")}<W of="Q" /></math>}>
            <Bars values={chain.q} {...bands} kind="q" />
          </Step>
          <Step n={2} {...open} title={say("s_k", { token: key })} says={say("s_k_says", { d })} formula={<math>{formula("k = x")}<W of="K" /></math>}>
            <Bars values={chain.k} {...bands} kind="k" />
          </Step>
          <Step n={3} {...open} title={say("s_product")} says={say("s_agree", { n: agree, d })}
            formula={<math>{formula("q · k =")}<munderover><mo>∑</mo><mrow>{formula("i = 0")}</mrow><mn>{d - 1}</mn></munderover><msub>{formula("q i")}</msub><msub>{formula("k i")}</msub><mo>=</mo><mn data-test="dot">{number(chain.dot, 2)}</mn></math>}>
            <Bars values={chain.product} {...bands} kind="p" axis />
            <p>{say("s_alone", { places: strongest.join(", "), terms: strongest.map((n) => number(chain.product[n], 2)).join(" + ").replace(/\+ −/g, "− "), sum: number(alone, 2), dot: number(chain.dot, 2) })}</p>
          </Step>
        </div>
        <div class="rest">
          <Step n={4} {...open} title={say("s_dot")} says={scaled ? say("s_dot_says") : ""}
            formula={<math>{formula("s =")}{scaled
              ? <><mfrac><mrow>{formula("q · k")}</mrow><msqrt><mn>{d}</mn></msqrt></mfrac><mo>=</mo><mfrac>{formula(`${number(chain.dot, 2)} ${number(Math.sqrt(d), 2)}`)}</mfrac></>
              : formula(`${number(chain.dot, 2)} × ${number(chain.scale, 4)}`)}{added(chain) && formula(added(chain).trim())}
            <mo>{chain.masked || chain.cap !== null ? "→" : "="}</mo>{chain.masked ? <mi>−∞</mi> : <mn data-test="score">{number(chain.score)}</mn>}</math>}>
            {chain.bias !== 0 && <p>{say("s_bias", { bias: number(chain.bias) })}</p>}
            {chain.terms.length > 0 && <table class="terms"><tbody>{chain.terms.map(({ name, value }) => (
              <tr key={name}><td class="quiet">{say(`t_${name}`)}</td><td>{value < 0 ? "−" : "+"} {number(Math.abs(value))}</td></tr>
            ))}</tbody></table>}
            {chain.cap !== null && <p>{say("t_cap", { cap: number(chain.cap, 1) })}</p>}
            {chain.masked && <p>{say("cell_masked")}</p>}
          </Step>
          <Step n={5} {...open} title={say("s_softmax")} says={say("s_softmax_says", { n: others.length })}
            formula={<math>{formula("p =")}<mfrac><msup>{formula("e s")}</msup><mrow><munder>{formula("∑ j")}</munder><msup><mi>e</mi><msub>{formula("s j")}</msub></msup></mrow></mfrac><mo>=</mo><mn data-test="weight">{number(chain.weight)}</mn></math>}>
            <table class="terms"><thead><tr><th>{say("t_key_word")}</th><th>{say("t_score")}</th><td /><th>{say("t_weight")}</th></tr></thead><tbody>{listed.map((n) => (
              <tr key={n} class={n === j ? "chosen" : ""}>
                <td class="who"><bdi>{spelled(info.keys, n)}</bdi></td><td>{chain.scores[n] > -1e30 ? number(chain.scores[n], 2) : "–"}</td>
                <td class="bar"><Fill share={chain.weights[n]} /></td><td><b>{number(chain.weights[n])}</b></td>
              </tr>
            ))}
            {unlisted > 0 && <tr class="quiet"><td class="who">{say("rest", { n: unlisted })}</td><td /><td /><td>{number(rest)}</td></tr>}</tbody></table>
            {chain.sink !== null && <p>{say("t_sink", { share: percent(chain.sink) })}</p>}
          </Step>
          <Step n={6} {...open} title={say("s_value")} formula={<math>{formula("p v")}</math>}
            says={chain.v ? say("s_value_says", { d: chain.v.length, token: key }) : say("s_value_none")}>
            {chain.v && <Bars values={chain.v.map((x) => x * chain.weight)} bands={[]} kind="v" />}
          </Step>
          <Step n={7} {...open} title={say("s_writes")} says={size !== undefined && share !== undefined
            ? say("s_writes_says", { token: query, n: number(size, 2), share: percent(share) })
            : say("s_writes_none")} formula={<math><mrow>{formula("| p v")}<W of="O" /><mo>|</mo></mrow>
              {norm !== undefined && <>{formula(`= ${number(chain.weight)} ×`)}<mn data-test="norm">{number(norm, 2)}</mn>{formula(`= ${number(norm * chain.weight, 2)}`)}</>}</math>}>
            {dModel !== undefined && norm !== undefined && <p class="quiet small">{say("s_added", { d: dModel, token: query })}</p>}
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
      <header><i>{n}</i>{formula}<h2>{title}</h2><small>{says}</small></header>
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
