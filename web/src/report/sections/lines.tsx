// Examples as concordance lines: the word that looks begins at one place in all rows; ink and an arc say where it looks.
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import type { Line } from "../data";
import { fitted, type Item } from "../fit";
import { tokenOf } from "../kinds";
import { count } from "../../words/numbers";
import { say } from "../words";

/** Where the word that looks begins, as a share of the line: by where most of the words it looks at stand. */
export function placeOf(lines: Line[]): number {
  const best = lines.filter((line) => line.best);
  const left = best.filter((line) => line.key < line.query).length / (best.length || 1);
  return left > 2 / 3 ? 0.62 : left < 1 / 3 ? 0.3 : 0.46;
}

/** The same place, moved as far as the longest words on either side require; and the most room of a word. */
function roomFor(lines: Line[], width: number, font: string): [place: number, longest: number] {
  const rooms = LONGEST.map((share) => {
    const sides = lines.map((line) => needs(line, font, share * width));
    return [Math.max(...sides.map(({ left }) => left)) / width, Math.max(...sides.map(({ right }) => right)) / width, share * width];
  });
  const [left, right, longest] = rooms.find(([before, after]) => before + after <= 1) ?? rooms[LONGEST.length - 1];
  return [Math.min(Math.max(placeOf(lines), Math.min(left, 0.8)), Math.max(1 - right, 0.2)), longest];
}

/** What the arc of a line points to: of a random word, a special token that gets more than every word. */
export const targetOf = ({ best, other, weight, first, sep }: Line): "key" | "first" | "sep" =>
  best || other || (weight >= first && weight >= sep) ? "key" : first >= sep ? "first" : "sep";

/** Words of a script that runs from right to left. */
const LEFTWARDS = /[\u0590-\u08ff\ufb1d-\ufefc]/;

/** The direction of most of its words. */
export const directionOf = ({ words }: Pick<Line, "words">): "ltr" | "rtl" => (2 * words.filter((word) => LEFTWARDS.test(word)).length > words.length ? "rtl" : "ltr");

/** A weight without its zero: .95 */
export const short = (weight: number): string => (weight >= 0.995 ? "1.0" : weight.toFixed(2).slice(1));

export function Lines({ lines, wanted }: { lines: Line[]; wanted: number }) {
  const box = useRef<HTMLDivElement>(null);
  const room = useSignal(0);
  const width = room.value;
  useLayoutEffect(() => {
    const measure = (): void => { room.value = box.current?.querySelector(".words")?.clientWidth ?? 0; };
    measure();
    const watcher = new ResizeObserver(measure);
    watcher.observe(box.current!);
    void document.fonts.ready.then(measure);
    return () => watcher.disconnect();
  }, []);
  const best = lines.filter((line) => line.best);
  const other = lines.filter((line) => line.other);
  const random = lines.filter((line) => !line.best && !line.other);
  const style = box.current ? getComputedStyle(box.current) : null;
  const font = `${style?.fontSize ?? "13px"} ${style?.fontFamily ?? "sans-serif"}`;
  const [place, longest] = width ? roomFor(lines, width, font) : [placeOf(lines), 0];
  const list = (shown: Line[], name: string) => (
    <ol class="lines" data-test={name}>
      {shown.map((line, n) => <Row key={n} line={line} place={place} width={width} longest={longest} font={font} />)}
    </ol>
  );
  return (
    <div ref={box}>
      <div class="row spread">
        <h2>{say("best")} <small>{best.length < wanted ? say("best_few", { n: count(best.length) }) : say("best_key")}</small></h2>
        <small>{say("ink_key")}</small>
      </div>
      {list(best, "best")}
      {other.length > 0 && <><h2>{say("unexplained")}</h2>{list(other, "other")}</>}
      <h2>{say("random")} <small>{say("random_key")}</small></h2>
      {list(random, "random")}
    </div>
  );
}

/** Padding and space around a word, as in the style sheet. */
const AROUND = 7;
const MARK = 46;
/** Where a line fades at its ends: a word of the pair never stands there. */
const FADE = 28;
/** How much closer a word stands that is written without a space before it. */
const TIGHT = 5;
/** Of a line, what a word may take, at most: the first that leaves room for every pair. */
const LONGEST = [1, 0.3, 0.2, 0.1];
const CLOSING = /^(?:[,.;:!?%…،؛؟۔।॥)\]}»”、。，；：？！）】」]+|n[’']t|[’'](?:s|d|m|ll|re|ve)?)$/i;

/** True for a word that is written without a space before it, but for the word that looks, whose place is fixed. */
const isTight = ({ words, query }: Line, n: number): boolean => n > 0 && n !== query && CLOSING.test(words[n]);
let pen: CanvasRenderingContext2D | null = null;

/** The room that a line's pair takes on either side, if all between is left out. */
function needs(line: Line, font: string, longest: number): { left: number; right: number } {
  const widths = widthsOf(line, font, longest);
  const beside = widths[line.key] + MARK + FADE;
  return line.key < line.query ? { left: beside, right: widths[line.query] + FADE } : { left: FADE, right: widths[line.query] + beside };
}

function widthsOf(line: Line, font: string, longest: number): number[] {
  pen ??= document.createElement("canvas").getContext("2d")!;
  return line.words.map((word, n) => {
    pen!.font = n === line.query || n === line.key ? `700 ${font}` : font;
    return Math.ceil(Math.min(pen!.measureText(word).width, longest)) + AROUND - (isTight(line, n) ? TIGHT : 0);
  });
}

function Row({ line, place, width, longest, font }: { line: Line; place: number; width: number; longest: number; font: string }) {
  const row = useRef<HTMLLIElement>(null);
  const open = useSignal(false);
  const bent = useSignal("");
  const arc = bent.value;
  const { words, ink, query, key, weight, first, sep } = line;
  const way = directionOf(line);
  const [begin, end] = way === "ltr" ? ([["first", first], ["sep", sep]] as const) : ([["sep", sep], ["first", first]] as const);
  const target = targetOf(line);
  const shown = target === "key" ? weight : target === "first" ? first : sep;
  const { before, after } = width
    ? fitted(query, key, line.gap, { widths: widthsOf(line, font, longest), left: place * width - FADE, right: (1 - place) * width - FADE, mark: MARK })
    : { before: [], after: [] };
  useEffect(() => {
    const at = row.current!.getBoundingClientRect();
    const middle = (of: string): [number, number] | null => {
      const box = row.current!.querySelector(of)?.getBoundingClientRect();
      return box ? [box.left + box.width / 2 - at.left, box.top - at.top] : null;
    };
    const [from, to] = [middle(".looks"), middle(target === "key" ? ".seen" : `.at-${target}`)];
    if (!width || !from || !to) return;
    const high = Math.max(2, Math.min(from[1], to[1]) - Math.min(13, 5 + Math.abs(from[0] - to[0]) / 10));
    const bend = Math.min(9, Math.abs(to[0] - from[0]) / 2) * Math.sign(to[0] - from[0]);
    bent.value = `M${from[0]} ${from[1]}C${from[0]} ${high} ${from[0]} ${high} ${from[0] + bend} ${high}H${to[0] - bend}C${to[0]} ${high} ${to[0]} ${high} ${to[0]} ${to[1] - 1}`;
  }, [width, place, line]);
  const word = (n: number) => (
    <bdi key={n} class={(n === query ? "looks" : n === key ? "seen" : "") + (isTight(line, n) ? " tight" : "")} style={{ "--w": Math.sqrt(ink[n] / 1000).toFixed(3) }} title={`${words[n]} ${(ink[n] / 1000).toFixed(3)}`}>{words[n]}</bdi>
  );
  const item = (item: Item) => ("word" in item ? word(item.word) : <span key="skip" class="skip" title={say("left_out_words", { n: item.skip })}>⋯ {item.skip} ⋯</span>);
  const special = ([name, value]: readonly ["first" | "sep", number]) => (
    <span class={`special at-${name}`} style={{ "--w": Math.sqrt(value).toFixed(3) }} title={`${tokenOf(name)} ${value.toFixed(3)}`}>{tokenOf(name)}</span>
  );
  const relation = line.up ?? (line.down && say("its", { relation: line.down }));
  const says = say("looks_at", { text: words[query], token: words[key], weight: weight.toFixed(2), first: first.toFixed(2), sep: sep.toFixed(2) });
  return (
    <li ref={row} class={`line to-${target}`} title={`${line.document}, ${line.window}`}>
      <b class="weight" data-test="weight">{short(shown)}</b>
      {special(begin)}
      <span class="words" dir={way} style={{ "--x": `${100 * place}%`, "--longest": `${longest}px` }}>
        <span class="unseen">{says}</span>
        <span class="side before" aria-hidden="true"><span>{[...before].reverse().map(item)}</span></span>
        <span class="side after" aria-hidden="true">{word(query)}{after.map(item)}</span>
      </span>
      {special(end)}
      <span class="relation quiet small" title={relation ?? undefined}>{relation}</span>
      <button class="open plain" aria-expanded={open.value} title={say("open_window")} onClick={() => { open.value = !open.value; }}>↗</button>
      <svg class="arc" aria-hidden="true"><path d={arc} style={{ strokeWidth: 0.8 + 1.4 * shown }} />{arc && <path class="tip" d={tip(arc)} />}</svg>
      {open.value && <Command command={line.command} />}
    </li>
  );
}

/** The arrow's head at the end of an arc. */
function tip(arc: string): string {
  const [x, y] = arc.split(/[ C]/).slice(-2).map(Number);
  return `M${x - 3} ${y - 3.5}h6l-3 4z`;
}

function Command({ command }: { command: string }) {
  const copied = useSignal(false);
  return (
    <div class="command">
      <p class="small quiet">{say("open_how")}</p>
      <code data-test="command">{command}</code>{" "}
      <button onClick={() => { void navigator.clipboard?.writeText(command).then(() => { copied.value = true; }); }}>{say(copied.value ? "copied" : "copy")}</button>
    </div>
  );
}
