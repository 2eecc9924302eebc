// Properties of the selected head, and of the hovered or pinned token.
import { useRef } from "preact/hooks";
import { grounded, sequentialAt } from "../drawing/colour";
import { rowEntropy } from "../trace/parts";
import { largestPlaces, strongestKeys } from "../trace/strongest";
import { count, number, percent, say, spoken } from "../words";
import { maskOf } from "../text/masking";
import { placed, seams, type Label } from "../text/shown";
import * as state from "../state/state";
import { current, lookedNumbers, mostOf, wanted, wantedKey, type Picture } from "../drawing/pictures";
import { start } from "../model/remote";
import { at, column, doc, headLabel, lookedColumn, lookedRow, row, shown } from "../state/store";
import { pinnedCell } from "../heads/asking";
import { byNumber } from "../heads/order";
import { pinnedWeights, weight } from "../heads/pinned";
import { isUniform, known, table } from "../heads/statistics";
import type { TraceInfo } from "../trace/trace";
import { statisticName, statisticUnit } from "../heads/catalog";
import { targetName } from "../model/ask";
import { effectAbout } from "../model/runs";
import { signal, useSignal } from "@preact/signals";
import { sized, useStops } from "./canvas";
import { HeadList } from "./headlist";
import { KeyLine } from "./keyline";
import { short } from "./slots";

const KEYS = 8;
/** Lines of keys that there is room for. */
const lines = signal(KEYS);
/** What leaves first where the panel is too low; of the keys, those below these many. */
const LEAVING = [".headlist", ".lookedby", 4, ".honest", 2, ".blocks", ".facts tr:not(.chosen)"];

/** Nothing is cut: what has no room leaves whole. */
function fit(panel: HTMLElement): void {
  const keys = [...panel.querySelectorAll<HTMLElement>(".ranked li:not(.rest)")];
  const leaving = LEAVING.flatMap((one) => (typeof one === "number" ? keys.slice(one).reverse() : [...panel.querySelectorAll<HTMLElement>(`:scope > ${one}`)].reverse()));
  leaving.forEach((one) => { one.hidden = false; });
  for (const one of leaving) {
    if (panel.scrollHeight <= panel.clientHeight + 1) break;
    one.hidden = true;
  }
  lines.value = keys.filter(({ hidden }) => !hidden).length || KEYS;
}
/** Heads in which the pinned cell is strongest. */
const HEADS = 5;
/** Statistics whose strips stand here at once; the others are one click away. */
const FIRST = ["cls", "previous", "next", "same", "distance", "effective_tokens"];

export function Inspector() {
  const { info } = doc.value!;
  const picture = current.value;
  const every = useSignal(false);
  const panel = useRef<HTMLElement>(null);
  useStops(() => {
    const element = panel.current!;
    let frame = 0;
    const later = (): void => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => fit(element));
    };
    const changes = new MutationObserver(later);
    changes.observe(element, { childList: true, subtree: true, characterData: true });
    return [() => cancelAnimationFrame(frame), sized(later, element), () => changes.disconnect()];
  });
  const { n } = at.value;
  const fresh = picture?.key === wantedKey(wanted.value!) ? picture! : null;
  const effect = table.value.effect ? ["effect"] : [];
  const first = [...FIRST.filter((name) => known.value.includes(name)).slice(0, start.value.atlas ? 1 : 6), ...effect];
  const listed = every.value || first.length < 2 ? [...known.value, ...effect] : first.includes(state.statistic.value) || !known.value.includes(state.statistic.value) ? first : [...first, state.statistic.value];
  const title = say("inspector", { n: count(info.layers.length * info.heads) });
  return (
    <section class="panel inspector" aria-label={title} ref={panel}>
      <h2>{title}</h2>
      <p class="habit">{info.broken.has(n) ? say("broken_says") : isUniform(info, n) ? say("near_uniform_says") : <Habit picture={fresh} />}</p>
      <Beside info={info} />
      <table class="facts">
        <tbody>
          {listed.map((name) => {
            const value = table.value[name]?.[n];
            return (
              <tr key={name} class={state.statistic.value === name ? "chosen" : ""} onClick={() => { state.statistic.value = name; }}>
                <th scope="row" title={name === "effect" && effectAbout.value?.target ? targetName(effectAbout.value.target) : statisticUnit(name)}>{statisticName(name)}</th>
                <td class="place"><Strip numbers={table.value[name]} here={n} /></td>
                <td>{value === undefined ? "–" : number(value, Math.abs(value) < 10 ? 3 : 1)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {known.value.length > first.length && first.length > 1 && <button class="plain" aria-expanded={every.value} onClick={() => state.flip(every)}>{say(every.value ? "fewer_numbers" : "all_numbers")}</button>}
      <Blocks picture={fresh} />
      <Looks most={mostOf(fresh)} />
      <LookedBy picture={fresh} />
      {state.statistic.value !== "weight" && <StrongestIn info={info} />}
      <p class="quiet small honest">{say("honest", { more: info.hasNorms && !state.normed.value ? say("honest_normed") : say("honest_causes") })}</p>
    </section>
  );
}

/** Shares of a picture's rows, the mean over the words that are no special tokens. */
function sharesOf(full: Float32Array, rows: Label[], columns: Label[]): Record<"special" | "before" | "after" | "itself" | "farther", number> {
  const sums = { special: 0, before: 0, after: 0, itself: 0, farther: 0 };
  const words = rows.filter(({ special }) => !special).length;
  rows.forEach((label, r) => {
    if (label.special) return;
    columns.forEach((key, c) => {
      const apart = key.tokens[0] - label.tokens[0];
      const name = key.special ? "special" : apart === 0 ? "itself" : columns[c + 1]?.tokens[0] === label.tokens[0] ? "before" : columns[c - 1]?.tokens[0] === label.tokens[0] ? "after" : "farther";
      sums[name] += full[r * columns.length + c] / words;
    });
  });
  return sums;
}

/** What the head does, in one sentence: where most of a word's weight goes, and the rank of the pinned pair. */
function Habit({ picture }: { picture: Picture | null }) {
  const words = shown.value!;
  const info = doc.value!.info;
  const numbers = pinnedWeights.value;
  const here = at.value.n;
  let told = "";
  if (picture?.full && info.queries === info.keys && words.rows.length === words.columns.length && !state.normed.value) {
    const shares = sharesOf(picture.full, words.rows, words.columns);
    const [one, other] = (Object.keys(shares) as (keyof typeof shares)[]).sort((a, b) => shares[b] - shares[a]);
    told = say("habit", { share: percent(shares[one]), where: say(`habit_${one}`), other: percent(shares[other]), there: say(`habit_${other}`) });
  }
  let rank = "";
  if (numbers) {
    const place = byNumber(numbers, true).indexOf(here) + 1;
    rank = say(place === 1 ? "habit_first" : "habit_rank", { text: words.rows[row.value!].text, token: words.columns[column.value!].text, n: place });
  }
  return <>{told} {rank}</>;
}

/** Of two texts: how much of their words' weight goes to each, and to special tokens; the mean over the words. */
function blocksOf(full: Float32Array, rows: Label[], columns: Label[]): number[][] {
  return [0, 1].map((text) => {
    const words = [...rows.keys()].filter((r) => rows[r].segment === text && !rows[r].special);
    return [0, 1, 2].map((to) => words.reduce((sum, r) => sum + columns.reduce((all, { special, segment }, c) => all + ((special ? 2 : segment) === to ? full[r * columns.length + c] : 0), 0), 0) / words.length);
  });
}

function Blocks({ picture }: { picture: Picture | null }) {
  const { rows, columns } = shown.value!;
  if (!picture?.full || state.normed.value || !seams(rows).length || !seams(columns).length) return null;
  const names = [say("text_a"), say("text_b"), say("blocks_special")];
  return (
    <table class="blocks">
      <thead><tr><th>{say("blocks")}</th>{names.map((name) => <th key={name} scope="col">{name}</th>)}</tr></thead>
      <tbody>{blocksOf(picture.full, rows, columns).map((shares, text) => (
        <tr key={text}><th scope="row">{names[text]}</th>{shares.map((share, to) => <td key={to} style={grounded(sequentialAt(Math.sqrt(share), state.dark.value))}>{short(share)}</td>)}</tr>
      ))}</tbody>
    </table>
  );
}

/** What a survey of the model says of the head, with a link to the head's page. */
function Beside({ info }: { info: TraceInfo }) {
  const { atlas } = start.value;
  const said = atlas?.model === info.model && atlas.heads[headLabel(info, at.value.n)]?.[spoken.value];
  return said ? <p class="small beside"><b>{said[0]}</b> {said[1]} {atlas.site && <a href={atlas.site + said[2] + "&theme=" + state.theme.value} target="_blank">{said[3]}</a>}</p> : null;
}

/** A tick for each head at its number, and this head's. */
function Strip({ numbers, here }: { numbers: Float32Array | undefined; here: number }) {
  const values = numbers ? Array.from(numbers).filter(Number.isFinite) : [];
  if (!values.length || !Number.isFinite(numbers![here])) return null;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (value: number): string => (2 + (96 * (value - low)) / (high - low || 1)).toFixed(1);
  return (
    <svg class="strip" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label={`${number(low)} – ${number(high)}`}>
      <title>{`${number(low)} – ${number(high)}`}</title>
      <path d={values.map((value) => `M${x(value)} 1v8`).join("")} /><path class="here" d={`M${x(numbers![here])} 0v10`} />
    </svg>
  );
}

/** In which heads the pinned cell is strongest. */
function StrongestIn({ info }: { info: TraceInfo }) {
  const asked = pinnedCell.value;
  if (!asked) return null;
  const numbers = weight.value?.key === asked.key ? weight.value.numbers : undefined;
  const order = numbers ? byNumber(numbers, true).slice(0, HEADS) : [];
  return <HeadList info={info} name={say("strongest_in")} order={order} numbers={numbers} test="strongest" />;
}

/** Where the query that is looked at looks. */
function Looks({ most }: { most: number }) {
  const looked = lookedRow.value;
  const numbers = lookedNumbers.value ?? new Float32Array(0);
  const keys = strongestKeys(numbers, state.mass.value).length;
  return (
    <>
      <h2 class="looks">
        {looked === null ? say("pick") : say("looks_at", { token: shown.value!.rows[looked]?.text ?? "" })}
        <small>
          {numbers.length && !state.normed.value ? say("row_entropy", { n: number(rowEntropy(numbers, shown.value!.partial), 2) }) : ""}
          {keys > 0 && <span class="cutline">{say(keys === 1 ? "cut_key" : "cut_keys", { n: count(keys), share: percent(state.mass.value) })}</span>}
        </small>
      </h2>
      <Ranked numbers={numbers} most={most} cut={keys} />
    </>
  );
}

/** The strongest keys of one query, always on the same number of lines, so that nothing moves. */
function Ranked({ numbers, most, cut }: { numbers: Float32Array; most: number; cut: number }) {
  const words = shown.value!;
  const looked = lookedRow.value;
  const masked = maskOf(wanted.value!);
  const seen = [...numbers].flatMap((weight, c) => (masked?.(words.rows[looked!], words.columns[c], weight) ? [] : [c]));
  const order = largestPlaces(numbers, KEYS).filter((c) => seen.includes(c));
  const rest = order.slice(0, lines.value).reduce((sum, c) => sum - numbers[c], numbers.reduce((sum, x) => sum + x, 0));
  return (
    <ol class="ranked">
      {Array.from({ length: KEYS }, (_, place) => {
        const c = order[place];
        if (c === undefined || !words.columns[c]) return <li key={place}>&nbsp;</li>;
        return <KeyLine key={place} label={words.columns[c]} c={c} weight={numbers[c]} shares={[numbers[c] / most]} cut={place + 1 === cut}>{number(numbers[c])}</KeyLine>;
      })}
      <li class="quiet rest">{seen.length > lines.value ? <><span>{say("rest", { n: count(seen.length - lines.value) })}</span><span class="bar" /><b>{number(rest)}</b></> : " "}</li>
    </ol>
  );
}

/** The queries that look most at a key. */
function LookedBy({ picture }: { picture: Picture | null }) {
  const words = shown.value!;
  const c = lookedColumn.value;
  const full = picture?.full;
  const masked = maskOf(wanted.value!);
  if (c === null || !words.columns[c]) return null;
  const numbers = Float32Array.from({ length: full && c < picture.columns ? picture.rows : 0 }, (_, r) => full![r * picture!.columns + c]);
  const order = largestPlaces(numbers, 3).filter((r) => words.rows[r] && !masked?.(words.rows[r], words.columns[c], numbers[r]));
  return (
    <div class="lookedby">
      <div class="quiet small">{say("looked_by", { token: words.columns[c].text })}</div>
      {[0, 1, 2].map((place) => (
        <div key={place} class="row spread">
          {place < order.length
            ? <><bdi>{placed(words.rows[order[place]])}</bdi><b>{number(numbers[order[place]])}</b></>
            : "\u00a0"}
        </div>
      ))}
    </div>
  );
}
