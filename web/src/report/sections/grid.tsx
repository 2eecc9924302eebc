// Every head: the mean of the chosen statistic, coloured; layers down, heads across.
import { csvCell, download, plainPart } from "../../files";
import { count, rounded } from "../../words/numbers";
import { headLabel, type Field, type Statistic, type Survey } from "../data";
import { endsOf, ramp, shadeOf, type Ends } from "../shades";
import { choose, chosenCell, chosenStatistic, hovered, scale, SCALES, statistic } from "../state";
import { counted, say } from "../words";

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
  const windows = counted("n_windows", survey.counts.windows, { n: count(survey.counts.windows) });
  return (
    <section class="panel" id="grid">
      <h2>{say("every_head")}</h2>
      <div class="row tools">
        <label>{say("coloured_by")} <select data-test="statistic" value={chosen?.name} onChange={(event) => { statistic.value = event.currentTarget.value; }}>
          {survey.statistics.map(({ name }) => <option key={name} value={name}>{name}</option>)}
        </select></label>
        <label>{say("scale")} <select data-test="scale" value={scale.value} disabled={chosen?.signed ?? true}
          onChange={(event) => { scale.value = event.currentTarget.value as (typeof SCALES)[number]; }}>
          {SCALES.map((name) => <option key={name} value={name}>{say(`scale_${name}`)}</option>)}
        </select></label>
        {chosen && <span class="row"><span class="quiet">{say("save")}</span><button data-test="csv" onClick={() => saveCsv(survey, chosen)}>CSV</button></span>}
      </div>
      <p class="meaning quiet" data-test="meaning">{chosen && <><span lang="en">{chosen.meaning}.</span> {say("mean_over", { windows })}</>}</p>
      <div class="across"><Cells survey={survey} chosen={chosen} ends={ends} /></div>
      <div class="legend">
        {ends ? <><span data-test="low">{rounded(ends.low)}</span><span class="ramp shade" style={ramp(chosen!.signed)} aria-hidden="true" /><span data-test="high">{rounded(ends.high)}</span></>
          : <span>{say("legend_none")}</span>}
        <span class="quiet" lang="en">{chosen?.unit}</span>
      </div>
      <p class="under quiet small" aria-hidden="true" data-test="under">{hovered.value !== null && chosen ? cellLabel(survey, chosen, hovered.value) : ""}</p>
    </section>
  );
}

function cellLabel(survey: Survey, { mean }: Statistic, cell: number): string {
  const head = headLabel(survey, cell);
  return mean[cell] === null ? say("cell_none", { head }) : say("cell", { head, value: rounded(mean[cell]) });
}

function Cells({ survey, chosen, ends }: { survey: Survey; chosen: Statistic | undefined; ends: Ends | null }) {
  const { layers, heads } = survey;
  const at = chosenCell(survey);
  const named = new Set(survey.named);
  return (
    <table class={`grid${heads.length > MANY ? " many" : ""}`} data-test="cells">
      <caption><span>{say("caption", { statistic: chosen?.name ?? say("no_statistic") })}</span></caption>
      <thead><tr><td />{heads.map((head) => <th key={head} scope="col">{head}</th>)}</tr></thead>
      <tbody>
        {layers.map((layer, row) => (
          <tr key={layer}>
            <th scope="row">{layer}</th>
            {heads.map((head, column) => {
              const cell = row * heads.length + column;
              if (!named.has(cell)) return <td key={head}><button disabled aria-label={say("no_head")} /></td>;
              const value = chosen?.mean[cell] ?? null;
              const label = chosen ? cellLabel(survey, chosen, cell) : headLabel(survey, cell);
              return (
                <td key={head}>
                  <button class={value === null ? "absent" : "shade"} title={label} aria-label={label} aria-pressed={cell === at} tabIndex={cell === at ? 0 : -1}
                    style={value === null || !ends ? {} : shadeOf(value, ends, chosen!.signed)} data-cell={cell}
                    onClick={() => choose(survey, cell)} onMouseEnter={() => { hovered.value = cell; }} onMouseLeave={() => { hovered.value = null; }}
                    onKeyDown={(event) => {
                      const next = STEPS[event.key] && neighbour(survey, cell, STEPS[event.key]);
                      if (!STEPS[event.key]) return;
                      event.preventDefault();
                      if (next === null) return;
                      choose(survey, next);
                      event.currentTarget.closest("table")!.querySelector<HTMLElement>(`[data-cell="${next}"]`)?.focus();
                    }}>{rounded(value)}</button>
                </td>
              );
            })}
          </tr>
        ))}
      </tbody>
    </table>
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
