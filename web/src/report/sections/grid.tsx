// Every head: its label, or the mean of a statistic, coloured; layers down, heads across. Each is a link to its page.
import { csvCell, download, plainPart } from "../../files";
import { count, rounded } from "../../words/numbers";
import { headLabel, type Field, type Label, type Statistic, type Survey } from "../data";
import { groupOf, moreOf, share, shortOf } from "../kinds";
import { headHref } from "../links";
import { called, numbersOf } from "../numbers";
import { endsOf, ramp, shadeOf, type Ends } from "../shades";
import { chosenStatistic, group, hovered, scale, SCALES, statistic } from "../state";
import { say } from "../words";
import { spoken } from "../../words/speech";

/** Number of heads per layer from which cells are drawn small. */
const MANY = 12;
const STEPS: Record<string, [number, number]> = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** The cell that an arrow key moves to: the next existing head in that row or column. */
export function neighbour({ layers, heads, named }: Survey, cell: number, [down, right]: [number, number]): number | null {
  let [row, column] = [Math.floor(cell / heads.length) + down, (cell % heads.length) + right];
  for (; row >= 0 && row < layers.length && column >= 0 && column < heads.length; row += down, column += right) {
    if (named.includes(row * heads.length + column)) return row * heads.length + column;
  }
  return null;
}

export function Grid({ survey }: { survey: Survey }) {
  const chosen = chosenStatistic(survey);
  const ends = chosen ? endsOf(chosen) : null;
  const windows = say("n_windows", { n: count(survey.counts.windows) });
  return (
    <section class="every" id="grid">
      <div class="row spread">
        <h2>{say("every_head")}</h2>
        <div class="row tools">
          <label>{say("coloured_by")} <select data-test="statistic" value={chosen?.name ?? ""} onChange={(event) => { statistic.value = event.currentTarget.value; }}>
            {survey.labels && <option value="">{say("by_label")}</option>}
            {numbersOf(survey).map((one) => <option key={one.name} value={one.name}>{called(one)}</option>)}
          </select></label>
          {chosen && <>
            <label>{say("scale")} <select data-test="scale" value={scale.value} disabled={chosen.signed}
              onChange={(event) => { scale.value = event.currentTarget.value as (typeof SCALES)[number]; }}>
              {SCALES.map((name) => <option key={name} value={name}>{say(`scale_${name}`)}</option>)}
            </select></label>
            <span class="row"><span class="quiet">{say("save")}</span><button data-test="csv" onClick={() => saveCsv(survey, chosen)}>CSV</button></span>
          </>}
        </div>
      </div>
      {chosen && <p class="meaning quiet" data-test="meaning"><span lang="en">{chosen.meaning}.</span> {survey.statistics.includes(chosen) && say("mean_over", { windows })}</p>}
      <div class="across"><Cells survey={survey} chosen={chosen} ends={ends} /></div>
      {chosen ? (
        <div class="legend">
          {ends ? <><span data-test="low">{rounded(ends.low)}</span><span class="ramp shade" style={ramp(chosen.signed)} aria-hidden="true" /><span data-test="high">{rounded(ends.high)}</span></>
            : <span>{say("legend_none")}</span>}
          <span class="quiet" lang="en">{chosen.unit}</span>
          <span class="under quiet" aria-hidden="true" data-test="under">{hovered.value !== null ? cellLabel(survey, chosen, hovered.value) : ""}</span>
        </div>
      ) : (
        <p class="keys quiet small">{survey.distances && <span>{say("key_distance")}</span>}<span>{say("key_words")}</span><span><i>{say("key_partly")}</i></span></p>
      )}
    </section>
  );
}

function cellLabel(survey: Survey, chosen: Statistic | undefined, cell: number): string {
  const head = headLabel(survey, cell);
  if (!chosen) {
    const label = survey.labels?.[cell];
    return label ? say("cell", { head, value: `${shortOf(label)}${label.score === null ? "" : ` ${share(label.score)}`}` }) : say("head", { head });
  }
  return chosen.mean[cell] === null ? say("cell_none", { head }) : say("cell", { head, value: rounded(chosen.mean[cell]) });
}

function Cells({ survey, chosen, ends }: { survey: Survey; chosen: Statistic | undefined; ends: Ends | null }) {
  const { layers, heads } = survey;
  const named = new Set(survey.named);
  const size = chosen || !survey.labels ? (heads.length > MANY ? " many" : "") : ` cards${heads.length > MANY ? " many" : ""}`;
  return (
    <table class={`grid${size}`} data-test="cells">
      <caption><span>{chosen || !survey.labels ? say("caption", { statistic: chosen ? called(chosen) : say("no_statistic") }) : say("grid_key")}</span></caption>
      <thead><tr><td />{heads.map((head) => <th key={head} scope="col">{head}</th>)}</tr></thead>
      <tbody>
        {layers.map((layer, row) => (
          <tr key={layer}>
            <th scope="row" data-says={say("layer")}>{layer}</th>
            {heads.map((head, column) => {
              const cell = row * heads.length + column;
              return <td key={head}>{named.has(cell) && <Cell survey={survey} cell={cell} chosen={chosen} ends={ends} first={cell === survey.named[0]} />}</td>;
            })}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Cell({ survey, cell, chosen, ends, first }: { survey: Survey; cell: number; chosen: Statistic | undefined; ends: Ends | null; first: boolean }) {
  const says = cellLabel(survey, chosen, cell);
  const label = survey.labels?.[cell];
  const value = chosen?.mean[cell] ?? null;
  const isCard = label && !chosen;
  const isFaded = group.value && label && groupOf(label) !== group.value;
  const shown = isCard ? `card g-${groupOf(label)}${label.part ? " partly" : ""}` : value === null ? "absent" : isFaded ? "" : "shade";
  return (
    <a class={isFaded ? `${shown} faded` : shown} href={headHref(survey, cell)} title={says} aria-label={isCard ? undefined : says} data-cell={cell} tabIndex={first ? 0 : -1}
      style={shown === "shade" && ends ? shadeOf(value!, ends, chosen!.signed) : {}}
      onMouseEnter={() => { hovered.value = cell; }} onMouseLeave={() => { hovered.value = null; }}
      onFocus={(event) => {
        for (const other of event.currentTarget.closest("table")!.querySelectorAll<HTMLElement>("a[tabindex='0']")) other.tabIndex = -1;
        event.currentTarget.tabIndex = 0;
      }}
      onKeyDown={(event) => {
        if (!STEPS[event.key]) return;
        event.preventDefault();
        const next = neighbour(survey, cell, STEPS[event.key]);
        if (next !== null) event.currentTarget.closest("table")!.querySelector<HTMLElement>(`[data-cell="${next}"]`)?.focus();
      }}>
      {isCard ? <Card survey={survey} cell={cell} label={label} /> : rounded(value)}
    </a>
  );
}

/** Long words with places where a narrow cell may break them. */
const hyphenated = (text: string): string => text.replace(/([a-z]{4,})(sition|tion|miner|iliary|ment|junct|ula)\b/g, "$1\u00ad$2");

/** The first clause of a head's label with the share that it explains by itself, its weight by distance, and the share of its weight on words. */
function Card({ survey, cell, label }: { survey: Survey; cell: number; label: Label }) {
  const distances = survey.distances?.[cell] ?? [];
  return (
    <>
      <span class="over"><span>{headLabel(survey, cell)}</span>{label.alone.length > 0 && <span>{share(label.alone[0])}</span>}</span>
      <b class="says">{hyphenated(label.short[spoken.value])} {label.clauses > 1 && <small>{moreOf(label)}</small>}</b>
      <svg viewBox="0 0 84 22" preserveAspectRatio="none" aria-hidden="true">
        {distances.map((value, n) => value !== null && value > 0 && (
          <rect key={n} x={4 * n + 0.4} width={3.2} y={16 - 16 * Math.sqrt(value)} height={16 * Math.sqrt(value)} class={n === 10 ? "self" : ""} />
        ))}
        <rect class="rail" x={0} y={18.5} width={84} height={3} /><rect x={0} y={18.5} width={84 * (1 - (label.special ?? 0))} height={3} />
      </svg>
    </>
  );
}

const SAVED: Field[] = ["mean", "deviation", "min", "q05", "q25", "q50", "q75", "q95", "max"];

/** A statistic of every head as text, a head per line. */
function saveCsv(survey: Survey, chosen: Statistic): void {
  const lines = survey.named.map((cell) => [
    csvCell(chosen.name), survey.layers[Math.floor(cell / survey.heads.length)], survey.heads[cell % survey.heads.length],
    chosen.count[cell], ...SAVED.map((field) => chosen[field][cell] ?? ""),
  ].join(","));
  const content = [["statistic", "layer", "head", "windows", ...SAVED].join(","), ...lines, ""].join("\r\n");
  download(content, "text/csv;charset=utf-8", `${plainPart(survey.model.name)}-${chosen.name}.csv`);
}
