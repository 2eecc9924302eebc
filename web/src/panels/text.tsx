// The head as ink on the text: behind each word what the chosen words look at, or how much it looks at them.
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { computed, effect, type ReadonlySignal, useSignal } from "@preact/signals";
import { css, inkOn, onScale, sequentialAt } from "../drawing/colour";
import { choose, choosePassage, clearSets, labelsOf, sides, type Side } from "../heads/asking";
import { ink, isEvery, subject, subjectSide } from "../text/ink";
import { current, mostOf } from "../drawing/pictures";
import { direction, prose, type Piece } from "../text/prose";
import * as state from "../state/state";
import { doc, shown } from "../state/store";
import { count, say } from "../words";
import { isIn, isQuiet, type Label } from "../text/shown";
import { fresh, ink as colourOf, intoSight, sized, useStops } from "./canvas";
import { Sign, Switch, memo } from "./controls";
import { between, placeAt, pointed } from "./pointed";
import { isOne as areOne } from "./ribbon";
import { short } from "./slots";

/** Sizes of the letters, the largest that lets the whole text be seen; long texts scroll at the last. */
const SIZES = [28, 18];
const SCROLLED = 18;
/** Widths of a letter and heights of a line, of the letters' size, for a first guess. */
const LETTER = 0.5;
const LINE = 1.5;
/** Numbers stand at weights from here on. */
const LEAST = { from: 0.03, to: 0.1 };
/** Ink that nobody would see is not laid on. */
const FAINT = 0.035;
const CHIPS = 4;
/** Of the map beside a text that scrolls. */
const MAP = 46;

/** True if queries and keys are the same words: then one text stands for both. */
const isOne = (): boolean => areOne(shown.value!, doc.value!.info);

const pieces: Record<Side, ReadonlySignal<Piece[]>> = {
  row: computed(() => prose(labelsOf("row"), doc.value!.info.queries)),
  column: computed(() => prose(labelsOf("column"), doc.value!.info.keys)),
};

const opposite = (side: Side): Side => (side === "row" ? "column" : "row");

export function TextView() {
  const side = subjectSide();
  return isOne() ? <div class="prosebox"><Prose key={side} side={side} inked={opposite(side)} pieces={pieces[side].value} labels={labelsOf(side)} /></div> : (
    <div class="prosebox pair">
      {(["row", "column"] as const).map((side) => (
        <section key={side}><h3>{say(side === "row" ? "queries" : "keys")}</h3><Prose side={side} inked={side} pieces={pieces[side].value} labels={labelsOf(side)} /></section>
      ))}
    </div>
  );
}

/** Where a word stands in its text. */
interface Place { top: number; left: number; right: number }

/** One text. `side`: what a click chooses; `inked`: whose numbers lie behind its words. */
function Prose({ side, inked, pieces, labels }: { side: Side; inked: Side; pieces: Piece[]; labels: Label[] }) {
  const box = useRef<HTMLDivElement>(null);
  const flow = useRef<HTMLDivElement>(null);
  const above = useRef<HTMLDivElement>(null);
  const map = useRef<HTMLCanvasElement>(null);
  const placed = useSignal<Place[] | null>(null);
  const measured = useRef([0, 0]);
  const seen = useSignal({ top: 0, height: 0 });
  const scrolled = useSignal(0);
  /** What each word looks like now, so that only changes reach the page. */
  const looks = useRef<string[]>([]);
  const { hover, pinned, held, set } = sides(side);

  /** Choose the size of the letters, and remember where each word stands. */
  function measure(): void {
    const [outer, inner] = [box.current!, flow.current!];
    measured.current = [outer.clientWidth, outer.clientHeight];
    const letters = pieces.reduce((sum, { before, text }) => sum + before.length + text.length, 0);
    const guess = (size: number): number => (letters * LETTER * size * LINE * size) / Math.max(1, outer.clientWidth - 24);
    const bounded = getComputedStyle(outer).overflowY !== "visible";
    map.current!.hidden = true;
    const fits = bounded && SIZES.find((size) => {
      if (guess(size) > 1.6 * outer.clientHeight) return false;
      inner.style.fontSize = `${size}px`;
      return inner.offsetHeight <= outer.clientHeight;
    });
    inner.style.fontSize = above.current!.style.fontSize = `${fits || SCROLLED}px`;
    map.current!.hidden = !bounded || Boolean(fits);
    looks.current = [];
    placed.value = Array.from(inner.children as HTMLCollectionOf<HTMLElement>, ({ offsetTop: top, offsetLeft: left, offsetWidth: wide }) => ({ top, left, right: left + wide }));
    look();
  }

  /** Measure again where the panel's size has changed. */
  function resized(): void {
    const { clientWidth: width, clientHeight: height } = box.current!;
    if (width !== measured.current[0] || height !== measured.current[1]) measure();
  }

  function look(): void {
    const outer = box.current!;
    const bounded = outer.scrollHeight > outer.clientHeight + 1;
    const half = outer.clientHeight / 2;
    scrolled.value = outer.scrollTop;
    const next = bounded ? { top: Math.floor(outer.scrollTop / half) * half, height: outer.clientHeight } : { top: 0, height: Infinity };
    if (next.top !== seen.peek().top || next.height !== seen.peek().height) seen.value = next;
  }

  useLayoutEffect(measure, [pieces]);
  useEffect(() => sized(resized, box.current), [pieces]);
  useStops(() => {
    // what another text or filter left on words that are out of sight now
    for (const span of flow.current!.children as HTMLCollectionOf<HTMLElement>) {
      span.style.background = span.style.color = "";
      span.removeAttribute("aria-description");
    }
    looks.current = [];
    return [effect(paint), effect(follow), effect(margin)];
  }, [pieces, side, inked]);

  /** The words on the screen, and about a screen around it: [from, to). */
  function range(): [number, number] {
    const words = placed.value!;
    const { top: y, height } = seen.value;
    const [from, to] = [y - height / 2, y + 2 * height].map((limit) => words.findIndex(({ top }) => top >= limit));
    return height === Infinity ? [0, words.length] : [from, to < 0 ? words.length : to];
  }

  /** The numbers behind the words of this text. */
  const inkHere = (): ArrayLike<number> | null => {
    const now = ink.value;
    return now && (inked === "column") === (now.direction === "from") && now.numbers.length === pieces.length ? now.numbers : null;
  };

  /** The whole text in small beside it, where it scrolls: each word in its ink, and a frame around those in sight. */
  function margin(): void {
    const [outer, canvas, words] = [box.current!, map.current!, placed.value];
    const { scrollHeight: all, clientHeight: high } = outer;
    const from = scrolled.value;
    if (!words || canvas.hidden) return;
    canvas.style.height = `${high}px`;
    const context = fresh(canvas, MAP, high);
    const [numbers, picture, pin] = [inkHere(), current.value, colourOf(canvas, "--pin")];
    const [down, across] = [high / all, MAP / flow.current!.clientWidth];
    words.forEach(({ top, left, right }, n) => {
      const t = numbers ? onScale(Math.abs(numbers[n]), mostOf(picture), state.scale.value) : 0;
      context.fillStyle = pinned.value === n ? pin : t > FAINT ? css(sequentialAt(t, state.dark.value)) : colourOf(canvas, "--line");
      context.fillRect(left * across, top * down, Math.max(1, (right - left) * across - 0.5), Math.max(1.5, 14 * down));
    });
    context.strokeStyle = colourOf(canvas, "--quiet");
    context.strokeRect(0.5, from * down + 0.5, MAP - 1, high * down - 1);
  }

  /** Ink, numbers and marks of the words on the screen, on the existing elements. */
  function paint(): void {
    const numbers = inkHere();
    const picture = current.value;
    if (!placed.value || !flow.current) return;
    const places = placed.value;
    const spans = flow.current.children as HTMLCollectionOf<HTMLElement>;
    const most = mostOf(picture);
    const [scale, dark] = [state.scale.value, state.dark.value];
    const least = LEAST[state.direction.value] * most;
    const words = labelsOf(side);
    const ringed = new Set(side === subjectSide() ? subject.value : []);
    const other = sides(opposite(subjectSide()));
    const asked = new Set(isOne() || side !== subjectSide() ? other.set.value.length ? other.set.value : [other.held.value] : []);
    const hovered = hover.value;
    const digits = 24;
    const [from, to] = range();
    const digitsAt = new Map<number, string>();
    let last = -1;
    for (let n = from; n < to; n++) {
      const value = numbers ? Math.abs(numbers[n]) : 0;
      if (!(value >= least)) continue;
      // numbers lie above the right end of their word; of two that would lie on each other the larger stays
      if (last >= 0 && places[last].top === places[n].top && places[n].right - places[last].right < digits) {
        if (value <= Math.abs(numbers![last])) continue;
        digitsAt.delete(last);
      }
      digitsAt.set(n, short(value));
      last = n;
    }
    // beside the text, so that it keeps its layout
    above.current!.replaceChildren(...Array.from(digitsAt, ([n, text]) => {
      const number = document.createElement("b");
      number.textContent = text;
      number.style.cssText = `left:${places[n].right}px;top:${places[n].top}px`;
      return number;
    }));
    for (let n = from; n < to; n++) {
      const span = spans[n];
      const value = numbers ? Math.abs(numbers[n]) : 0;
      const t = onScale(value, most, scale);
      const colour = t > FAINT || Number.isNaN(t) ? sequentialAt(t, dark) : null;
      const tokens = words[n]?.tokens ?? [];
      const classes = `word${words[n] && isQuiet(words[n]) ? " special" : ""}${colour ? " inked" : ""}${ringed.has(n) ? " chosen" : ""}${hovered === n ? " hovered" : ""}${tokens.some((token) => asked.has(token)) ? " other" : ""}`;
      const [ground, number] = [colour ? css(colour) : "", digitsAt.get(n)];
      const look = `${classes}${ground}${number}`;
      if (looks.current[n] === look) continue;
      looks.current[n] = look;
      span.className = classes;
      span.style.background = ground;
      span.style.color = colour ? inkOn(colour) : "";
      span.ariaSelected = String(ringed.has(n) && hovered !== n);
      if (number) span.setAttribute("aria-description", number);
      else span.removeAttribute("aria-description");
    }
  }

  /** Scroll the pinned word into sight. */
  function follow(): void {
    const y = placed.value?.[pinned.value ?? -1]?.top;
    if (y !== undefined && box.current) intoSight(box.current, y);
  }

  /** Arrows move the pinned word, by lines too; with Shift they extend the passage. */
  function keys(event: KeyboardEvent): void {
    const places = placed.value!;
    const now = pinned.peek() ?? -1;
    const chosen = set.peek();
    const ends = event.shiftKey && chosen.length ? labels.findLastIndex((label) => isIn(label, chosen)) : now;
    const line = (by: 1 | -1): number => {
      const start = places[ends];
      if (!start) return ends + by;
      let next = ends;
      const ahead = (): Place => places[next + by];
      while (ahead() && (ahead().top === start.top || (places[next].top !== start.top && ahead().top === places[next].top && by * (places[next].right - start.right) < 0))) next += by;
      return places[next].top === start.top ? next + by : next;
    };
    const on = direction(labels) === "rtl" ? -1 : 1;
    const next = event.key === "ArrowRight" ? ends + on : event.key === "ArrowLeft" ? ends - on : event.key === "ArrowDown" ? line(1) : event.key === "ArrowUp" ? line(-1) : null;
    if (next === null) return;
    event.preventDefault();
    event.stopPropagation();
    if (!labels[next]) return;
    if (event.shiftKey && now >= 0) choosePassage(side, between(labels, now, next));
    else held.value = labels[next].tokens[0];
  }

  return (
    <div class="prose" ref={box} onScroll={look} data-test={`prose-${side}`}>
      <div class="flow" ref={flow} role="listbox" aria-multiselectable="true" tabIndex={0} dir={direction(labels)}
        aria-label={say(side === "row" ? "queries" : "keys")} aria-activedescendant={pinned.value === null ? undefined : `${side}-${pinned.value}`} onKeyDown={keys}
        {...pointed(side, labels, () => { set.value = state.NONE; })}
        onDblClick={(event) => {
          const n = placeAt(event);
          if (n === null) return;
          const alike = labels.filter(({ text }) => text.toLowerCase() === labels[n].text.toLowerCase()).flatMap(({ tokens }) => tokens);
          held.value = labels[n].tokens[0];
          choosePassage(side, alike);
        }}>
        <Words pieces={pieces} labels={labels} side={side} />
      </div>
      <div ref={above} aria-hidden="true" />
      <canvas class="margin" ref={map} aria-hidden="true" onPointerDown={({ offsetY }) => {
        const { scrollHeight: all, clientHeight: high } = box.current!;
        box.current!.scrollTop = (offsetY / high) * all - high / 2;
      }} />
    </div>
  );
}

/** The elements of the words, made once for a text. */
const Words = memo(({ pieces, labels, side }: { pieces: Piece[]; labels: Label[]; side: Side }) => (
  <>{pieces.map(({ before, text }, n) => [before, <span key={n} id={`${side}-${n}`} class="word" role="option" data-at={n} title={labels[n].title}>{text}</span>])}</>
));

/** From or to, and the chosen words. */
export function TextTools() {
  const side = subjectSide();
  const set = sides(side).set.value;
  const chosen = labelsOf(side).filter((label) => isIn(label, set));
  return (
    <>
      <Switch held={state.direction} names={state.DIRECTIONS} says={(name) => say(`text_${name}`)} test="direction" title={say("ask_choose")} />
      {chosen.length > 0 && <span class="row chosen" data-test="chosen">
        {chosen.slice(0, CHIPS).map(({ text, tokens, repeats }) => (
          <button key={tokens[0]} class="chip" title={text} onClick={() => choose(side, tokens)}><bdi>{text}</bdi>{repeats !== null && <sub>{repeats}</sub>} ×</button>
        ))}
        {chosen.length > CHIPS && <span class="quiet">+{count(chosen.length - CHIPS)}</span>}
        <Sign says={say("ask_clear")} class="plain" onClick={clearSets}>×</Sign>
      </span>}
    </>
  );
}

/** What the ink is. */
export function TextNote() {
  const direction = state.direction.value;
  const labels = labelsOf(subjectSide());
  const places = subject.value;
  const text = isEvery.value ? (ink.value ? say("text_from_every") : say("text_choose"))
    : !places.length ? say("text_choose")
    : say(`text_${direction}_${places.length > 1 ? "many" : "one"}`, { token: labels[places[0]]?.text ?? "", n: count(places.length) });
  return <span class="wraps" data-test="ink" aria-live="polite"><span class="quiet">{text}{ink.value && ` · ${say("text_numbers", { n: short(LEAST[direction] * mostOf(current.value)) })}`}</span></span>;
}
