// Every head: its label, or the mean of a statistic, coloured; layers down, heads across. Each is a link to its page.
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import type { RefObject } from "preact";
import { csvCell, download, plainPart } from "../../drawing/files";
import { count } from "../../words/numbers";
import { headLabel, type Field, type Label, type Statistic, type Survey } from "../data";
import { gainOf, groupOf, isWeak, moreOf, share, shortOf, titleOf } from "../kinds";
import { headHref } from "../links";
import { called, figure, numbersOf } from "../numbers";
import { endsOf, ramp, shadeOf, type Ends } from "../shades";
import { chosenStatistic, hovered, resized, scale, SCALES, statistic, wanted } from "../state";
import { say, tongueOf, translated } from "../words";
import { isolated, spoken } from "../../words/speech";
import { Menu } from "../../panels/controls";
import { Finder, isWanted } from "./finder";

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
  const numbers = numbersOf(survey);
  return (
    <section class="every" id="grid" aria-label={say("every_head")} style={{ "--layers": survey.layers.length, "--heads": survey.heads.length, "--abreast": survey.heads.length === 4 ? 2 : 3 }}>
      <div class="row spread">
        <Finder survey={survey} />
        <div class="row tools">
          <label>{say("coloured_by")} <Menu held={statistic} value={chosen?.name ?? ""} names={[...(survey.labels ? [""] : []), ...numbers.map(({ name }) => name)]}
            says={(name) => (name ? called(numbers.find((one) => one.name === name)!) : say("label"))} test="statistic" /></label>
          {chosen && <>
            <label>{say("scale")} <Menu held={scale} names={SCALES} says={(name) => say(`scale_${name}`)} test="scale" disabled={chosen.signed} /></label>
            <span class="row"><span class="quiet">{say("save")}</span><button data-test="csv" onClick={() => saveCsv(survey, chosen)}>CSV</button></span>
          </>}
        </div>
      </div>
      {chosen && <p class="meaning quiet" data-test="meaning"><span lang={tongueOf(chosen.meaning)}>{translated(chosen.meaning)}</span>{say("stop")}{survey.statistics.includes(chosen) && say("mean_over", { windows: say("n_windows", { n: count(survey.counts.windows) }) })}</p>}
      <div class="across"><Cells survey={survey} chosen={chosen} ends={ends} /></div>
      {chosen ? (
        <div class="legend">
          {ends ? <><span data-test="low">{figure(chosen.name, ends.low)}</span><span class="ramp shade" style={ramp(chosen.signed)} aria-hidden="true" /><span data-test="high">{figure(chosen.name, ends.high)}</span></>
            : <span>{say("legend_none")}</span>}
          <span class="quiet" lang={tongueOf(chosen.unit)}>{translated(chosen.unit)}</span>
          <span class="under quiet" aria-hidden="true" data-test="under">{hovered.value !== null ? cellLabel(survey, chosen, hovered.value) : ""}</span>
        </div>
      ) : <Under survey={survey} />}
    </section>
  );
}

/** The whole label of the head that is pointed at, with its numbers; first of the head whose label explains most. */
function Under({ survey }: { survey: Survey }) {
  const gain = (cell: number): number => (survey.labels![cell] ? gainOf(survey.labels![cell]) : -1);
  const cell = hovered.value ?? survey.named.reduce((best, other) => (gain(other) > gain(best) ? other : best), survey.named[0]);
  const label = survey.labels?.[cell];
  if (!label) return null;
  return (
    <p class="under" data-test="under">
      <b class="pin">{headLabel(survey, cell)}</b> <b><bdi>{titleOf(label)}</bdi></b>{" "}
      <span class="quiet">{[
        label.score !== null && `${share(label.score)}${say("evidence", { n: count(label.count ?? 0) })}`,
        label.baseline !== null && say("by_chance", { share: share(label.baseline) }),
        label.bits !== null && say("tile_bits", { bits: label.bits.toFixed(1) }),
        label.special !== null && say("tile_rests", { share: share(label.special) }),
      ].filter(Boolean).join(" · ")}</span>
    </p>
  );
}

function cellLabel(survey: Survey, chosen: Statistic | undefined, cell: number): string {
  const head = headLabel(survey, cell);
  if (!chosen) {
    const label = survey.labels?.[cell];
    return label ? say("cell", { head, value: `${isolated(shortOf(label))}${label.score === null ? "" : ` ${share(label.score)}`}` }) : say("head", { head });
  }
  return chosen.mean[cell] === null ? say("cell_none", { head }) : say("cell", { head, value: figure(chosen.name, chosen.mean[cell]) });
}

function Cells({ survey, chosen, ends }: { survey: Survey; chosen: Statistic | undefined; ends: Ends | null }) {
  const { layers, heads } = survey;
  const named = new Set(survey.named);
  useEffect(() => {
    const again = (): void => { resized.value++; };
    addEventListener("resize", again);
    return () => removeEventListener("resize", again);
  }, []);
  const size = chosen || !survey.labels ? (heads.length > MANY ? " many" : "") : ` cards${heads.length > MANY ? " many" : ""}`;
  return (
    <table class={`grid${size}`} data-test="cells">
      <caption><span class={size.includes("cards") ? "unseen" : ""}>{say("caption", { statistic: chosen ? called(chosen) : say(survey.labels ? "label" : "no_statistic") })}</span></caption>
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
  const isFaded = !isWanted(survey, cell);
  const shown = isCard ? `card${isWeak(label) ? " weak" : ""}${label.part ? " partly" : ""}` : value === null ? "absent" : isFaded ? "" : "shade";
  return (
    <a class={isFaded ? `${shown} faded` : shown} href={headHref(survey, cell)} title={says} aria-label={isCard ? undefined : says} data-cell={cell} tabIndex={first ? 0 : -1}
      style={shown === "shade" && ends ? shadeOf(value!, ends, chosen!.signed) : {}}
      onMouseEnter={() => { hovered.value = cell; }} onMouseLeave={() => { hovered.value = null; }}
      onFocus={(event) => {
        hovered.value = cell;
        for (const other of event.currentTarget.closest("table")!.querySelectorAll<HTMLElement>("a[tabindex='0']")) other.tabIndex = -1;
        event.currentTarget.tabIndex = 0;
      }}
      onKeyDown={(event) => {
        if (!STEPS[event.key]) return;
        event.preventDefault();
        const next = neighbour(survey, cell, STEPS[event.key]);
        if (next !== null) event.currentTarget.closest("table")!.querySelector<HTMLElement>(`[data-cell="${next}"]`)?.focus();
      }}>
      {isCard ? <Card survey={survey} cell={cell} label={label} /> : figure(chosen?.name ?? "", value)}
    </a>
  );
}

/** The share that the first words of a head's label explain by themselves, with what they would by chance, and those words. */
function Card({ survey, cell, label }: { survey: Survey; cell: number; label: Label }) {
  const [alone, chance] = [label.alone[0], label.aloneChance[0]];
  const place = `${spoken.value} ${resized.value}`; // another one is measured anew
  return (
    <>
      <span class="over"><span>{headLabel(survey, cell)}</span><Kind key={place} label={label} />{alone !== undefined && <b>{share(alone)}</b>}</span>
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
        <rect class="rail" y={2} width={100} height={5} />
        {alone !== undefined && <><rect y={2} width={100 * alone} height={5} /><rect class="mark" x={100 * (chance ?? 0)} width={1.6} height={8} /></>}
      </svg>
      <Says key={place} label={label} />
    </>
  );
}

/**
 * Shorter and shorter forms of the first clause, and how many clauses more there are: without who looks, an aside, how far,
 * and of examples the last. What would say something else is not cut.
 */
export function formsOf(label: Label): [clause: string, more: string][] {
  const whole = label.kind === "none" ? say("title_none") : label.short[spoken.value];
  const forms = [whole, whole.replace(/^[^:：]{2,40}[:：]\s*/, "")];
  forms.push(forms[1].replace(/\s*[(（][^)）]*[)）]/g, ""));
  forms.push(forms[2].replace(/,? at most \d+\D*$/, ""));
  if (label.kind === "learned") forms.push(...[...forms[3].matchAll(/, /g)].reverse().map(({ index }) => forms[3].slice(0, index)));
  const different = [...new Set(forms)];
  return [...different.map((form): [string, string] => [form, moreOf(label)]), [different.at(-1)!, ""], ["", ""]];
}

/** The first of so many forms that its place holds, by its number; each is tried once it is drawn. */
function useFitting(forms: number): [RefObject<HTMLSpanElement>, number] {
  const box = useRef<HTMLSpanElement>(null);
  const tried = useSignal(0);
  const level = tried.value;
  useLayoutEffect(() => {
    const { scrollHeight, clientHeight, scrollWidth, clientWidth } = box.current!;
    if (level < forms - 1 && (scrollHeight > clientHeight + 1 || scrollWidth > clientWidth)) tried.value = level + 1;
  }, [level]);
  return [box, level];
}

/** The first clause, as much of it as its place holds. */
function Says({ label }: { label: Label }) {
  const forms = formsOf(label);
  const [box, level] = useFitting(forms.length);
  const [clause, more] = forms[level];
  return <span class="says" ref={box}><Marked text={clause} />{more && <> <small>{more}</small></>}</span>;
}

/** The kind of a label, where there is room for the word. */
function Kind({ label }: { label: Label }) {
  const [box, level] = useFitting(2);
  return <span class="kind" ref={box}>{level ? "" : say(`kind_${groupOf(label)}`)}</span>;
}

/** A text with the word that is looked for marked in it. */
function Marked({ text }: { text: string }) {
  const word = wanted.value.trim().toLowerCase();
  const at = word ? text.toLowerCase().indexOf(word) : -1;
  return at < 0 ? <>{text}</> : <>{text.slice(0, at)}<mark>{text.slice(at, at + word.length)}</mark>{text.slice(at + word.length)}</>;
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
