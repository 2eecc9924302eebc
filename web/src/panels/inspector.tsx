// What the head is like, and where the token that is looked at looks.
import { headColour } from "../colour";
import { entropy } from "../trace/arithmetic";
import { count, number, percent, say, type Word } from "../words";
import * as state from "../state";
import { at, column, current, doc, lookedColumn, lookedRow, mostOf, row, rowNumbers, shown, wanted, wantedKey, type Picture } from "../store";
import { isUniform, NAMES, table } from "../statistics";
import { copyLink, saveCsv, saveJson, savePng, saveSvg } from "../export";

const KEYS = 10;

interface Overview { entropies: Float32Array; sink: { column: number; share: number } | null }
const overviews = new WeakMap<Picture, Overview>();

/** Per-query entropies and the key that takes the most, from a whole picture. */
function overview(picture: Picture): Overview | null {
  if (!picture.full) return null;
  const held = overviews.get(picture);
  if (held) return held;
  const { rows, columns, full } = picture;
  const entropies = new Float32Array(rows);
  const mass = new Float64Array(columns);
  for (let r = 0; r < rows; r++) {
    entropies[r] = entropy(full.subarray(r * columns, (r + 1) * columns));
    for (let c = 0; c < columns; c++) mass[c] += full[r * columns + c];
  }
  let most = 0;
  for (let c = 1; c < columns; c++) if (mass[c] > mass[most]) most = c;
  const found = { entropies, sink: columns > 3 && mass[most] / rows > 0.5 ? { column: most, share: mass[most] / rows } : null };
  overviews.set(picture, found);
  return found;
}

export function Inspector() {
  const info = doc.value?.info;
  const words = shown.value;
  const picture = current.value;
  if (!info || !words) return null;
  const { layer, head } = at.value;
  const n = layer * info.heads + head;
  const fresh = picture && wanted.value && picture.key === wantedKey(wanted.value) ? picture : null;
  const seen = fresh && !state.normed.value ? overview(fresh) : null;
  const colour = headColour(head, info.heads, state.dark.value);
  const looked = lookedRow.value;
  const numbers = looked !== null && rowNumbers.value?.row === looked ? rowNumbers.value.data : null;
  const most = Math.log(Math.max(2, words.columns.length));
  const limits: Record<string, number> = { entropy: Math.log(Math.max(2, info.keys.tokens.length)), distance: info.keys.tokens.length };
  return (
    <aside class="panel inspector" aria-label={say("inspector")}>
      <h2>{say("inspector")} <b style={{ color: colour }}>{info.layerNumbers[layer]}.{info.headNumbers[layer][head]}</b></h2>
      <table class="facts">
        <tbody>
          {NAMES.map((name) => {
            const value = table.value?.[name]?.[n];
            return (
              <tr key={name} class={state.statistic.value === name ? "chosen" : ""} onClick={() => { state.statistic.value = name; }}>
                <th scope="row">{say(`stat_${name}` as Word)}</th>
                <td class="bar"><i style={{ width: `${100 * Math.min(1, (value ?? 0) / (limits[name] ?? 1))}%` }} /></td>
                <td>{value === undefined ? "–" : number(value, name === "distance" ? 1 : 3)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      <p class="note">{isUniform(info, n) ? say("near_uniform_says") : seen?.sink ? say("sink", { token: words.columns[seen.sink.column].text, share: percent(seen.sink.share) }) : " "}</p>
      <Spark values={seen?.entropies ?? null} most={most} colour={colour} />
      <h2 class="looks">
        {looked === null ? say("pick") : say("looks_at", { token: words.rows[looked]?.text ?? "" })}
        <small>{numbers && !state.normed.value ? say("row_entropy", { n: number(entropy(numbers), 2) }) : ""}</small>
      </h2>
      <Ranked numbers={numbers} most={fresh ? mostOf(fresh) : 1} colour={colour} />
      <LookedBy picture={fresh} />
      <p class="quiet small">{say("honest", { more: info.valueNorms && !state.normed.value ? say("honest_normed") : say("honest_causes") })}</p>
      <div class="row save">
        <span class="quiet">{say("save")}</span>
        <button onClick={() => void saveSvg()}>SVG</button><button onClick={() => void savePng()}>PNG</button>
        <button onClick={() => void saveCsv()}>CSV</button><button onClick={() => void saveJson()}>JSON</button>
        <button onClick={() => void copyLink()}>{say("copy_link")}</button>
      </div>
    </aside>
  );
}

/** The strongest keys of one query. Always as many lines, so that nothing moves. */
function Ranked({ numbers, most, colour }: { numbers: Float32Array | null; most: number; colour: string }) {
  const words = shown.value!;
  const order = numbers ? Array.from(numbers.keys()).sort((a, b) => numbers[b] - numbers[a]).slice(0, KEYS) : [];
  const rest = numbers ? numbers.reduce((sum, x) => sum + x, 0) - order.reduce((sum, c) => sum + numbers[c], 0) : 0;
  return (
    <ol class="ranked" data-test="ranked">
      {Array.from({ length: KEYS }, (_, place) => {
        const c = order[place];
        if (c === undefined || !numbers || !words.columns[c]) return <li key={place}>&nbsp;</li>;
        const label = words.columns[c];
        return (
          <li key={place} class={column.value === c ? "chosen" : ""} title={label.title} data-column={c} data-weight={numbers[c]}
            onPointerEnter={() => { state.hoverColumn.value = c; }} onPointerLeave={() => { state.hoverColumn.value = null; }}
            onClick={() => {
              if (row.value === null && lookedRow.value !== null) state.query.value = words.rows[lookedRow.value].tokens[0];
              state.key.value = label.tokens[0];
            }}>
            <bdi class={label.special ? "special" : ""}>{label.continues && <small>·</small>}{label.text}</bdi>
            <span class="bar"><i style={{ width: `${100 * Math.min(1, numbers[c] / most)}%`, background: colour }} /></span>
            <b>{number(numbers[c])}</b>
          </li>
        );
      })}
      <li class="quiet">{numbers && numbers.length > KEYS ? <><span>{say("rest", { n: count(numbers.length - KEYS) })}</span><span class="bar" /><b>{number(rest)}</b></> : " "}</li>
    </ol>
  );
}

/** The queries that look most at a key. */
function LookedBy({ picture }: { picture: Picture | null }) {
  const words = shown.value!;
  const c = lookedColumn.value;
  const full = picture?.full;
  const order = full && c !== null && c < picture.columns
    ? Array.from({ length: picture.rows }, (_, r) => r).sort((a, b) => full[b * picture.columns + c] - full[a * picture.columns + c]).slice(0, 3)
    : [];
  return (
    <div class="lookedby">
      <div class="quiet small">{c !== null && words.columns[c] ? say("looked_by", { token: words.columns[c].text }) : " "}</div>
      {[0, 1, 2].map((place) => (
        <div key={place} class="row spread">
          {order[place] !== undefined && full && c !== null
            ? <><bdi>{words.rows[order[place]].text}</bdi><b>{number(full[order[place] * picture.columns + c])}</b></>
            : " "}
        </div>
      ))}
    </div>
  );
}

/** Entropy of every query, in the order of the text. */
function Spark({ values, most, colour }: { values: Float32Array | null; most: number; colour: string }) {
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
    const x = (bar * width) / bars;
    path += `M${x.toFixed(1)} ${height}v${(-y).toFixed(1)}h${Math.max(0.6, width / bars - (bars < 60 ? 1 : 0)).toFixed(1)}v${y.toFixed(1)}z`;
  }
  return (
    <figure class="spark">
      <svg viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true"><path d={path} fill={colour} /></svg>
      <figcaption class="quiet small">{say("entropy_rows", { most: number(most, 2) })}</figcaption>
    </figure>
  );
}
