// The sentence: behind each word, and below it, how much the selected head looks there from the pinned word; arcs to the strongest.
import { useLayoutEffect, useRef } from "preact/hooks";
import { effect, useSignal } from "@preact/signals";
import { grounded, onScale, sequentialAt } from "../drawing/colour";
import { sides } from "../heads/asking";
import { maskOf } from "../text/masking";
import { current, lookedNumbers, mostOf, wanted } from "../drawing/pictures";
import { direction, prose, type Piece } from "../text/prose";
import { isIn, isQuiet, isUnspaced, seams, type Label, type Shown } from "../text/shown";
import type { Axis, TraceInfo } from "../trace/trace";
import { paper } from "../state/appearance";
import * as state from "../state/state";
import { at, doc, headLabel, lookedColumn, lookedRow, shown } from "../state/store";
import { say, tell } from "../words";
import { changing, hasRibbon } from "../text/sentence";
import { Adding } from "./adding";
import { sized, useStops } from "./canvas";
import { TextBox } from "./textbox";
import { beside, felt } from "../model/runs";
import { hasModel, start } from "../model/remote";
import { pointed } from "./pointed";
import { short } from "./slots";

/** Weights from here on have an arc. */
export const ARC = 0.04;
/** Room above the words, for arcs: above the first line, and above others. */
const SKY = 44;
const BETWEEN = 26;
/** A sentence of so few tokens has large letters and arcs on a wide screen, in two lines if one is too short. */
const FEW = 20;
const WIDE = 1000;
/** How a sentence is set, the first that fits: closer, without the note beside it, with smaller letters, in lines. */
const SETTINGS = ["", "tight", "tight alone", "tight middle alone", "tight middle alone folded", "small"];
/** Of two texts, each in a line with its name where the window is so high. */
const TWO = ["small named", "small"];
const HIGH = 800;

export function Ribbon() {
  const [words, { info }] = [shown.value!, doc.value!];
  const server = hasModel.value && !start.value.model;
  const spelled = said(words.rows, info.queries);
  const looks = spelled[lookedRow.value ?? -1];
  const one = isOne(words, info);
  return (
    <section class={`ribbon${hasRibbon() ? "" : " long"}`} aria-label={say("sentence")}>
      {changing.value && server ? <TextBox key={doc.value!.id} /> : hasRibbon() && (
        one ? <Sentence side="both" labels={words.columns} text={prose(words.columns, info.keys)} /> : <div class="two">
          <Sentence side="row" labels={words.rows} text={prose(words.rows, info.queries)} /><Sentence side="column" labels={words.columns} text={prose(words.columns, info.keys)} />
        </div>
      )}
      <div class="about">
        <Adding />
        {server && <button data-test="change-text" aria-expanded={changing.value} onClick={() => state.flip(changing)}>{say(changing.value ? "close" : "change_text")}</button>}
        {hasRibbon() && !changing.value && <div class="note">
          {/* room for every word: were the note to grow with the word under the pointer, that word would move away from it */}
          {felt.value ? <p class="quiet small">{beside.value!.ask.kind === "groups" ? say("grp_ink", { most: short(felt.value.most) }) : say("shift_title")}</p> : [undefined, ...new Set(spelled)].map((word) => (
            <p key={`:${word}`} class="quiet small" style={{ visibility: word === looks ? "" : "hidden" }}>{word === undefined ? say("pick")
              : tell("ribbon_ink", { head: headLabel(info, at.value.n), token: <b class="pin"><bdi>{word}</bdi></b> })}{word && info.layers[at.value.layer].causal && ` · ${say("cannot_ahead")}`}</p>
          ))}
        </div>}
      </div>
    </section>
  );
}

/** True where the words that look are those that are looked at. */
export const isOne = ({ rows, columns }: Shown, info: TraceInfo): boolean =>
  info.queries === info.keys && rows.length === columns.length && rows[0]?.tokens[0] === columns[0]?.tokens[0];

/** The words as the writer spelled them. */
export const said = (labels: Label[], axis: Axis): string[] => prose(labels, axis).map(({ text }) => text.replace(/\s+$/, ""));

/** A word with its ink, and its number below. */
export function Ink({ text, value, most, hides = false }: { text: string; value: number | undefined; most: number; hides?: boolean }) {
  const t = value === undefined ? 0 : onScale(Math.abs(value), most, state.scale.value);
  return <>
    <bdi style={t > 0 ? grounded(sequentialAt(t, state.dark.value)) : {}}>{text}</bdi>
    <small>{value === undefined || hides ? "" : Math.abs(value) < 0.005 ? "·" : short(value)}</small>
  </>;
}

interface Arc { d: string; wide: number; t: number; pinned: boolean }

/** `both`: one text looks at itself; `row`: the words that look; `column`: those that are looked at. */
function Sentence({ side, labels, text }: { side: "both" | "row" | "column"; labels: Label[]; text: Piece[] }) {
  const box = useRef<HTMLDivElement>(null);
  const arcs = useSignal<Arc[]>([]);
  const small = useSignal(false);
  const turn = useSignal(0);
  const looks = side !== "column";
  const way = direction(labels.map((label, n) => ({ ...label, text: text[n].text })));
  const seam = side === "both" ? seams(labels)[0] : undefined;
  const { pinned, held, set } = sides(looks ? "row" : "column");
  const numbers = (): Float32Array | null => (side === "row" ? null : lookedNumbers.value);

  /** Letters as large as they fit, 28 px at best. */
  function fit(): void {
    const element = box.current!;
    const words = element.querySelectorAll<HTMLElement>(".said-word");
    const last = words[words.length - 1];
    /** The words of one line: of all, or of each of two texts. */
    const lines: [HTMLElement, HTMLElement][] = seam ? [[words[0], words[seam - 1]], [words[seam], last]] : [[words[0], last]];
    const wide = paper.peek() || element.closest<HTMLElement>(".ribbon")!.clientWidth >= WIDE;
    for (const setting of side !== "both" ? ["small"] : seam ? TWO : SETTINGS) {
      if ((setting.includes("alone") && !wide) || (setting.includes("folded") && labels.length > FEW) || (setting.includes("named") && innerHeight < HIGH)) continue;
      element.className = `sentence ${setting}`;
      small.value = setting === "small";
      if (setting.includes("folded") || words.length < 2 || lines.every(([first, last]) => last.offsetTop <= first.offsetTop + 4)) break;
    }
    turn.value = turn.peek() + 1;
  }
  useLayoutEffect(fit, [labels]);
  useStops(() => {
    let wide = box.current!.clientWidth;
    void document.fonts.ready.then(() => { if (box.current) fit(); });
    const resized = (): void => {
      if (box.current!.clientWidth === wide) return;
      wide = box.current!.clientWidth;
      fit();
    };
    return [sized(resized, box.current), effect(draw)];
  }, [labels]);

  function draw(): void {
    void turn.value;
    const [now, from, to] = [numbers(), lookedRow.value, lookedColumn.value];
    if (small.value || felt.value || !now || from === null || !box.current) {
      arcs.value = [];
      return;
    }
    const words = box.current.querySelectorAll<HTMLElement>(".said-word > bdi");
    const most = mostOf(current.value);
    const middle = (n: number): number => words[n].offsetLeft + words[n].offsetWidth / 2;
    const top = (n: number): number => words[n].offsetTop;
    const bottom = (n: number): number => top(n) + words[n].parentElement!.offsetHeight;
    arcs.value = Array.from(now.keys())
      .filter((c) => words[c] && words[from] && c !== from && Math.abs(now[c]) / most >= ARC)
      .sort((a, b) => Number(a === to) - Number(b === to) || Math.abs(now[a]) - Math.abs(now[b]))
      .map((c) => {
        const [a, b, t] = [middle(c), middle(from), Math.min(1, Math.abs(now[c]) / most)];
        const high = 1.3 * Math.min(top(c) > SKY + 4 ? BETWEEN : top(c) - 4, 14 + Math.abs(a - b) / 14);
        const [upper, lower] = top(c) < top(from) ? [c, from] : [from, c];
        const d = top(c) === top(from) ? `M${a} ${top(c)}C${a} ${top(c) - high} ${b} ${top(c) - high} ${b} ${top(c)}`
          : `M${middle(upper)} ${bottom(upper)}C${middle(upper)} ${bottom(upper) + BETWEEN} ${middle(lower)} ${top(lower) - BETWEEN} ${middle(lower)} ${top(lower)}`;
        return { d, wide: 1 + 6 * t, t, pinned: c === to };
      });
  }

  /** True where nothing parts a word from the one before, in a script that has no spaces. */
  const isClose = (n: number): boolean => n > 0 && !text[n].before && !isQuiet(labels[n - 1]) && (isUnspaced(labels[n].text) || isUnspaced(labels[n - 1].text));
  const turned = felt.value;
  const now = turned ? labels.map(({ tokens }) => tokens.reduce((sum, token) => sum + turned.values[token], 0) / tokens.length) : numbers();
  const most = turned?.most ?? mostOf(current.value);
  const masked = now && !turned && lookedRow.value !== null ? maskOf(wanted.value!) : null;
  return (
    <div class="sentence" ref={box} role="listbox" tabIndex={0} aria-multiselectable="true" data-test={`sentence-${side}`} dir={way}
      aria-label={say(looks ? "queries" : "keys")} aria-activedescendant={pinned.value === null ? undefined : `word-${side}-${pinned.value}`}
      onKeyDown={(event) => {
        const by = (event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0) * (way === "rtl" ? -1 : 1);
        const next = labels[(pinned.peek() ?? -by) + by];
        if (!by || event.shiftKey) return;
        event.preventDefault();
        event.stopPropagation();
        if (next) held.value = next.tokens[0];
      }}
      {...pointed(looks ? "row" : "column", labels)}>
      <svg class="arcs" height={SKY} aria-hidden="true">{arcs.value.map(({ d, wide, t, pinned: here }) => (
        <path key={d} d={d} class={here ? "here" : ""} stroke-width={wide.toFixed(1)} stroke-opacity={here ? 1 : (0.3 + 0.7 * t).toFixed(2)} />
      ))}</svg>
      {(seam ? [labels.slice(0, seam), labels.slice(seam)] : [labels]).map((part, second) => <div key={second} class={seam ? "part" : "contents"}>
      {(seam || side !== "both") && <small class="which">{say(side === "row" ? "queries" : side !== "both" ? "keys" : second ? "text_b" : "text_a")}</small>}
      {part.map((label, place) => {
        const n = place + (second && seam!);
        const value = now?.[n];
        const hides = masked?.(shown.value!.rows[lookedRow.value!], label, value ?? 1) ?? false;
        const asked = isIn(label, set.value);
        const classes = `said-word${isQuiet(label) ? " special" : ""}${label.continues ? " on" : isClose(n) ? " close" : ""}${(looks ? lookedRow : lookedColumn).value === n ? " looking" : ""}${side === "both" && lookedColumn.value === n ? " seen" : ""}${asked ? " chosen" : ""}${hides ? " ahead" : ""}`;
        return (
          <span key={n} id={`word-${side}-${n}`} class={classes} role="option" aria-selected={pinned.value === n || asked} data-at={n} data-weight={value} title={label.title}>
            <Ink text={text[n].text.trimEnd()} value={value} most={most} hides={hides} />
          </span>
        );
      })}
      </div>)}
    </div>
  );
}
