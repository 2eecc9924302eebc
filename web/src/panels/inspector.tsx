// Properties of the selected head, and of the hovered or pinned token.
import { memo } from "../memo";
import { entropy } from "../trace/cells";
import { largestPlaces, strongestKeys } from "../trace/strongest";
import { count, number, percent, say, spoken } from "../words";
import { maskOf } from "../masking";
import { mean } from "../several";
import { placed } from "../shown";
import * as state from "../state";
import { current, mostOf, rowNumbers, wanted, wantedKey, type Picture } from "../pictures";
import { at, column, doc, headLabel, lookedColumn, lookedRow, row, shown } from "../store";
import { pinnedCell } from "../asking";
import { byNumber } from "../order";
import { isUniform, known, table, weight } from "../statistics";
import type { TraceInfo } from "../trace/trace";
import { barEnd, statisticName } from "../catalog";
import { Fill } from "./bar";
import { HeadList } from "./headlist";
import { KINDS, saveAs } from "../export";

const KEYS = 10;
/** Heads in which the pinned cell is strongest. */
const HEADS = 5;

export function Inspector() {
  const info = doc.value?.info;
  const words = shown.value;
  const picture = current.value;
  if (!info || !words) return null;
  const { layer, head } = at.value;
  const n = layer * info.heads + head;
  const fresh = picture && wanted.value && picture.key === wantedKey(wanted.value) ? picture : null;
  const sink = fresh?.most && !state.normed.value && words.columns.length > 3 && fresh.most.share > 0.5 ? fresh.most : null;
  const most = Math.log(Math.max(2, words.columns.length));
  return (
    <aside class="panel inspector" aria-label={say("inspector")}>
      <StrongestIn info={info} />
      <h2>{say("inspector")} <b>{headLabel(info, layer, head)}</b></h2>
      <table class="facts">
        <tbody>
          {known.value.map((name) => {
            const value = table.value?.[name]?.[n];
            return (
              <tr key={name} class={state.statistic.value === name ? "chosen" : ""} onClick={() => { state.statistic.value = name; }}>
                <th scope="row" title={statisticName(name)}>{statisticName(name)}</th>
                <td class="bar"><Fill share={Math.abs(value || 0) / barEnd(name, table.value![name])} /></td>
                <td>{value === undefined ? "–" : number(value, Math.abs(value) < 10 ? 3 : 1)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      <p class="note">{info.broken.has(n) ? say("broken_says") : isUniform(info, n) ? say("near_uniform_says") : sink ? say("sink", { token: words.columns[sink.column].text, share: percent(sink.share) }) : " "}</p>
      <Spark values={fresh && !state.normed.value ? fresh.entropies : null} most={most} language={spoken.value} />
      <Looks most={fresh ? mostOf(fresh) : 1} />
      <LookedBy picture={fresh} />
      <p class="quiet small">{say("honest", { more: info.hasNorms && !state.normed.value ? say("honest_normed") : say("honest_causes") })}</p>
      <div class="row save">
        <span class="quiet">{say("save")}</span>
        {KINDS.map((kind) => <button key={kind} onClick={() => saveAs(kind)}>{kind}</button>)}
      </div>
    </aside>
  );
}

/** In which heads the pinned cell is strongest. */
function StrongestIn({ info }: { info: TraceInfo }) {
  const asked = pinnedCell.value;
  if (!asked) return null;
  const numbers = weight.value?.key === asked.key ? weight.value.numbers : undefined;
  const words = shown.value!;
  const [query, key] = [words.rows[row.value!].text, words.columns[column.value!].text];
  const order = numbers ? byNumber(numbers, true).slice(0, HEADS) : [];
  const here = numbers?.[at.value.layer * info.heads + at.value.head];
  const most = asked.normed && numbers ? Math.max(...order.map((n) => numbers[n]), 1e-9) : 1;
  return (
    <section class="strongest">
      <h2><span><bdi title={query}>{query}</bdi> → <bdi title={key}>{key}</bdi></span> <b>{here === undefined ? "" : number(here)}</b></h2>
      <h3 class="row spread"><span>{say("strongest_in")}</span> <small class="quiet">{say("of_heads", { n: count(info.layers.length * info.heads) })}</small></h3>
      <HeadList info={info} order={order} lines={HEADS} numbers={numbers} test="strongest" share={(value) => value / most} />
    </section>
  );
}

/** Where the query that is looked at looks. */
function Looks({ most }: { most: number }) {
  const looked = lookedRow.value;
  const numbers = looked !== null && rowNumbers.value?.row === looked ? rowNumbers.value.data : null;
  const keys = numbers ? strongestKeys(numbers, state.mass.value).length : 0;
  return (
    <>
      <h2 class="looks">
        {looked === null ? say("pick") : say("looks_at", { token: shown.value!.rows[looked]?.text ?? "" })}
        <small>
          {numbers && !state.normed.value ? say("row_entropy", { n: number(entropy(numbers), 2) }) : ""}
          {keys > 0 && <span class="cutline" data-test="cut">{say(keys === 1 ? "cut_key" : "cut_keys", { n: count(keys), share: percent(state.mass.value) })}</span>}
        </small>
      </h2>
      <Ranked numbers={numbers} most={most} />
    </>
  );
}

/** The strongest keys of one query, always on the same number of lines, so that nothing moves. */
function Ranked({ numbers, most }: { numbers: Float32Array | null; most: number }) {
  const words = shown.value!;
  const looked = lookedRow.value;
  const masked = maskOf(doc.value!.info, at.value.layer, mean.value);
  const isMasked = (c: number): boolean => masked !== null && numbers !== null && looked !== null && masked(words.rows[looked], words.columns[c], numbers[c]);
  const order = numbers ? largestPlaces(numbers, KEYS).filter((c) => !isMasked(c)) : [];
  const visible = masked && numbers ? numbers.reduce((sum, _, c) => sum + (isMasked(c) ? 0 : 1), 0) : (numbers?.length ?? 0);
  const cut = numbers ? strongestKeys(numbers, state.mass.value).length : 0;
  const rest = numbers ? numbers.reduce((sum, x) => sum + x, 0) - order.reduce((sum, c) => sum + numbers[c], 0) : 0;
  return (
    <ol class="ranked" data-test="ranked">
      {Array.from({ length: KEYS }, (_, place) => {
        const c = order[place];
        if (c === undefined || !numbers || !words.columns[c]) return <li key={place}>&nbsp;</li>;
        const label = words.columns[c];
        return (
          <li key={place} class={`${column.value === c ? "chosen" : ""}${place + 1 === cut ? " cut" : ""}`} title={label.title} data-column={c} data-weight={numbers[c]}
            onPointerEnter={() => { state.hoverColumn.value = c; }} onPointerLeave={() => { state.hoverColumn.value = null; }}
            onClick={() => {
              if (row.value === null && lookedRow.value !== null) state.query.value = words.rows[lookedRow.value].tokens[0];
              state.key.value = label.tokens[0];
            }}>
            <bdi class={label.special ? "special" : ""}>{label.continues && <small>·</small>}{label.text}{label.repeats !== null && <sub>{label.repeats}</sub>}</bdi>
            <span class="bar"><Fill share={numbers[c] / most} /></span>
            <b>{number(numbers[c])}</b>
          </li>
        );
      })}
      <li class="quiet">{numbers && visible > KEYS ? <><span title={say("rest", { n: count(visible - KEYS) })}>{say("rest", { n: count(visible - KEYS) })}</span><span class="bar" /><b>{number(rest)}</b></> : " "}</li>
    </ol>
  );
}

/** The queries that attend most to a key. */
function LookedBy({ picture }: { picture: Picture | null }) {
  const words = shown.value!;
  const c = lookedColumn.value;
  const full = picture?.full;
  const masked = maskOf(doc.value!.info, at.value.layer, mean.value);
  const order = full && c !== null && c < picture.columns
    ? largestPlaces(full, 3, picture.rows, c, picture.columns)
        .filter((r) => !(masked && words.rows[r] && masked(words.rows[r], words.columns[c], full[r * picture.columns + c])))
    : [];
  return (
    <div class="lookedby">
      <div class="quiet small">{c !== null && words.columns[c] ? say("looked_by", { token: words.columns[c].text }) : " "}</div>
      {[0, 1, 2].map((place) => (
        <div key={place} class="row spread">
          {order[place] !== undefined && full && c !== null
            ? <><bdi>{placed(words.rows[order[place]])}</bdi><b>{number(full[order[place] * picture.columns + c])}</b></>
            : " "}
        </div>
      ))}
    </div>
  );
}

/** Entropy of every query, in the order of the text. */
const Spark = memo(({ values, most }: { values: Float32Array | null; most: number; language: string }) => {
  const width = 240;
  const height = 34;
  const bars = Math.min(width, values?.length ?? 0);
  let path = "";
  for (let bar = 0; values && bar < bars; bar++) {
    const from = Math.floor((bar * values.length) / bars);
    const to = Math.max(from + 1, Math.floor(((bar + 1) * values.length) / bars));
    let sum = 0;
    for (let n = from; n < to; n++) sum += values[n];
    const y = height * Math.min(1, sum / (to - from) / most);
    if (Number.isNaN(y)) continue;
    const x = (bar * width) / bars;
    path += `M${x.toFixed(1)} ${height}v${(-y).toFixed(1)}h${Math.max(0.6, width / bars - (bars < 60 ? 1 : 0)).toFixed(1)}v${y.toFixed(1)}z`;
  }
  return (
    <figure class="spark">
      <svg viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true"><path d={path} /></svg>
      <figcaption class="quiet small">{say("entropy_rows", { most: number(most, 2) })}</figcaption>
    </figure>
  );
});
