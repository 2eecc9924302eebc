// The boxes of a page with a model: what is typed, the guess for [MASK], and the heads that turn it.
import { guesses, type Guess } from "../heads/guesses";
import { compare, cosine, first, guessOf, kept, silence, silent, texts, took, type, whole } from "../model/live";
import { hasHead, toggled } from "../model/ask";
import { start, trouble } from "../model/remote";
import { flip } from "../state/state";
import { at, type Doc } from "../state/store";
import { Field, Sign } from "./controls";
import { short } from "./slots";
import { say, tell } from "../words";
import "../model/live.css";

export function Live() {
  const [text, second] = texts.value;
  const one = first();
  const { examples } = start.value.model!;
  return (
    <section class="live">
      <div class="boxes">
        <Box text={text} slot={0} label={say("live_typed")} />
        {second !== null && <Box text={second} slot={1} label={say("live_second")} />}
        <Sign says={say(second === null ? "live_add" : "live_drop")} data-test="live-compare" onClick={() => void compare(second === null).then(() => document.querySelector<HTMLElement>(".boxes input + input")?.focus())}>{second === null ? "+" : "−"}</Sign>
        <span class="quiet measured" data-turn={took.value?.turn} data-ms={took.value?.ms}>{took.value ? say("live_measured", { n: took.value.tokens, ms: Math.round(took.value.ms) }) : say("live_private")}</span>
      </div>
      <div class="row spread">
        <div class="row examples">
          {examples.length > 0 && <><span class="quiet">{say("live_try")}</span>
            {examples.map((one) => <button key={one} class="plain" onClick={() => void type(one, 0)}>{one}</button>)}</>}
        </div>
        <label class="small"><input type="checkbox" data-test="live-keep" checked={kept.value} onChange={() => flip(kept)} /> {say("live_keep")}</label>
      </div>
      <div class="guess row">
        {one && <Guesses one={one} />}
        <Silence />
        {silent.value.length > 0 && <button data-test="live-all" onClick={() => void silence([])}>{say("live_all")}</button>}
      </div>
      <Cosine />
    </section>
  );
}

function Box({ text, slot, label }: { text: string; slot: 0 | 1; label: string }) {
  return (
    <Field value={text} label={label} placeholder={label} test={`live-text-${slot}`} autocomplete="off" onEnter={() => { trouble.value = null; }}
      onInput={(event) => { if (!(event as InputEvent).isComposing) void type(event.currentTarget.value, slot); }}
      onCompositionEnd={(event) => void type(event.currentTarget.value, slot)} />
  );
}

/** The likeliest words, in grey what they were with every head, and the heads that turn the guess. */
function Guesses({ one }: { one: Doc }) {
  const guess = guessOf(one);
  if (!guess) return null;
  const [best] = guess.top;
  const before = silent.value.length > 0 ? whole.value : null;
  return (
    <>
      <h1>{before && before[0].label !== best.label
        ? tell("live_turned", { heads: <b>{silent.value.map((head) => head.join(".")).join(", ")}</b>, text: <bdi>{before[0].label}</bdi>, token: <b class="pin"><bdi>{best.label}</bdi></b> })
        : <>{say("live_guess")} <b class="pin"><bdi>{best.label}</bdi></b></>}</h1>
      <ol class="row">{guess.top.slice(0, 4).map(({ label, share }) => {
        const was = before?.find((other) => other.label === label)?.share ?? 0;
        return <li key={label}><bdi>{label}</bdi> <span>{short(share)}</span><i><b style={{ width: `${100 * share}%` }} />{before && <u style={{ width: `${100 * was}%` }} />}</i></li>;
      })}</ol>
      {before && <small>{say("live_grey")}</small>}
      <Turns />
    </>
  );
}

/** The heads that turn the guess, once each head was silenced. */
function Turns() {
  const all = guesses.value;
  if (silent.value.length || !all?.every(Boolean)) return null;
  const turning = all.filter((head) => head!.turns) as Guess[];
  return (
    <span data-test="live-turns">{say(turning.length ? "live_turning" : "live_none", { n: all.length })} {turning.slice(0, 4).map(({ layer, head, label, share }) => (
      <button key={`${layer}.${head}`} onClick={() => void silence(toggled(silent.value, layer, head))}>{layer}.{head} → <bdi>{label}</bdi> {short(share)}</button>
    ))}</span>
  );
}

/** Silence the head in view, or let it speak again. */
function Silence() {
  const { layer, head } = at.value;
  const off = hasHead(silent.value, layer, head);
  return (
    <button aria-pressed={off} data-test="live-silence" onClick={() => void silence(toggled(silent.value, layer, head))}>
      {say(off ? "live_speak" : "live_silence", { head: `${layer}.${head}` })}
    </button>
  );
}

/** The two sentences' cosine, and each word's share of it. */
function Cosine() {
  const now = cosine.value;
  if (!now) return null;
  const most = Math.max(...now.shares.flat().map(Math.abs));
  return (
    <div class="cosine">
      <h2>{say("live_cosine")} <b>{now.cosine.toFixed(3)}</b> <small>{say("live_made")}</small></h2>
      {now.shares.map((shares, side) => (
        <p key={side}>{shares.map((share, at) => (
          <span key={at} title={share.toFixed(3)} class={share < 0 ? "less" : "more"} style={{ "--share": Math.abs(share) / most }}><bdi>{now.labels[side][at]}</bdi><small>{short(share)}</small></span>
        ))}</p>
      ))}
    </div>
  );
}
