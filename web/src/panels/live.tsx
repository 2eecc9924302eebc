// The boxes of a page with a model: what is typed, the guess for [MASK], and every head with the guess without it.
import { compare, cosine, everyHeadOn, first, isSilent, kept, pythonLine, silent, texts, toggle, took, type, whole, without } from "../model/live";
import { outcomes, start, trouble } from "../model/remote";
import * as state from "../state/state";
import type { Doc } from "../state/store";
import { short } from "./slots";
import { say } from "../words";
import { Sign } from "./sign";
import "../model/live.css";

export function Live() {
  const [text, second] = texts.value;
  const one = first();
  return (
    <section class="live" data-test="live">
      <div class="boxes">
        <Box text={text} slot={0} label={say("live_typed")} />
        {second !== null && <Box text={second} slot={1} label={say("live_second")} />}
        <Sign says={say(second === null ? "live_add" : "live_drop")} data-test="live-compare" onClick={() => void compare(second === null)}>{second === null ? "+" : "−"}</Sign>
        <span class="quiet measured" data-test="live-took" data-turn={took.value?.turn} data-ms={took.value?.ms}>{took.value && say("live_measured", { n: took.value.tokens, ms: Math.round(took.value.ms) })}</span>
      </div>
      <div class="row examples">
        {start.value.model!.examples.length > 0 && <><span class="quiet">{say("live_try")}</span>
          {start.value.model!.examples.map((one) => <button key={one} class="plain" onClick={() => void type(one, 0)}>{one}</button>)}</>}
      </div>
      {one && <div class="answers"><Guess one={one} />{state.pane.value !== "compare" && <Heads one={one} />}</div>}
      <Cosine />
      <div class="row foot">
        <span class="quiet">{say("live_private")}</span>
        <label><input type="checkbox" data-test="live-keep" checked={kept.value} onChange={(event) => { kept.value = event.currentTarget.checked; }} /> {say("live_keep")}</label>
        <button data-test="live-python" onClick={() => void copyLine()}>{say("live_python")}</button>
        {silent.value.length > 0 && <button data-test="live-all" onClick={() => void everyHeadOn()}>{say("live_all")}</button>}
      </div>
    </section>
  );
}

async function copyLine(): Promise<void> {
  const line = pythonLine();
  state.status.value = await navigator.clipboard.writeText(line).then(() => say("live_copied", { line }), () => say("live_uncopied", { line }));
}

function Box({ text, slot, label }: { text: string; slot: 0 | 1; label: string }) {
  return (
    <input value={text} aria-label={label} placeholder={label} data-test={`live-text-${slot}`} dir="auto" spellcheck={false} autocomplete="off"
      onInput={(event) => { if (!(event as InputEvent).isComposing) void type(event.currentTarget.value, slot); }}
      onCompositionEnd={(event) => void type(event.currentTarget.value, slot)}
      onKeyDown={(event) => { event.stopPropagation(); if (event.key === "Escape") event.currentTarget.blur(); if (event.key === "Enter") trouble.value = null; }} />
  );
}

/** The likeliest words, and in grey what they were with every head. */
function Guess({ one }: { one: Doc }) {
  const [guess] = outcomes.value[one.remote ?? ""] ?? [];
  if (!guess) return null;
  const [best] = guess.top;
  const turned = silent.value.length > 0 && whole.value && whole.value.label !== best.label;
  return (
    <div class="guess" data-test="live-guess">
      <h2>{turned ? say("live_turned", { heads: silent.value.map((head) => head.join(".")).join(", "), text: whole.value!.label, token: best.label }) : <>{say("live_guess")}: <b class="guessed">{best.label}</b></>}</h2>
      <ol>{guess.top.slice(0, 4).map(({ label, share }) => (
        <li key={label}><bdi>{label}</bdi><i><b style={{ width: `${100 * share}%` }} /></i><span>{short(share)}</span></li>
      ))}</ol>
      <Turns one={one} best={best.label} />
    </div>
  );
}

/** The heads that turn the guess, once each head was silenced. */
function Turns({ one: { info }, best }: { one: Doc; best: string }) {
  const all = Object.entries(without.value);
  const count = info.layers.length * info.heads - silent.value.length;
  if (silent.value.length || all.length < count) return null;
  const turning = all.filter(([, { label }]) => label !== best);
  return (
    <p class="turn" data-test="live-turns">{say(turning.length ? "live_turning" : "live_none", { n: count })} {turning.slice(0, 4).map(([name, { label, share }]) => (
      <button key={name} onClick={() => void toggle(...(name.split(".").map(Number) as [number, number]))}>{name} → <bdi>{label}</bdi> {short(share)}</button>
    ))}</p>
  );
}

function Heads({ one: { info, remote } }: { one: Doc }) {
  const guess = outcomes.value[remote ?? ""]?.[0]?.top[0];
  const count = info.layers.length * info.heads;
  return (
    <div class="turns">
      <h2>{say(guess ? "live_without" : "live_heads", { n: count })}</h2>
      <div class="turngrid" style={{ "--across": info.heads }}>
        {info.layers.map((_, layer) => Array.from({ length: info.heads }, (_, head) => {
          const name = `${layer}.${head}`;
          const off = isSilent(layer, head);
          const now = without.value[name];
          const differs = now && guess && now.label !== guess.label;
          return (
            <button key={name} data-test={`turn-${name}`} aria-pressed={off} title={say(off ? "live_speak" : "live_silence", { head: name })}
              class={`${off ? "off" : ""}${differs ? " differs" : ""}`} onClick={() => void toggle(layer, head)}>
              <small>{name}</small>{guess && <span>{off ? say("live_off") : now ? <><bdi>{now.label}</bdi> {short(now.share)}</> : "…"}</span>}
            </button>
          );
        }))}
      </div>
    </div>
  );
}

/** The two sentences' cosine, and each word's share of it. */
function Cosine() {
  const now = cosine.value;
  if (!now) return null;
  const most = Math.max(...now.shares.flat().map(Math.abs));
  return (
    <div class="cosine" data-test="live-cosine">
      <h2>{say("live_cosine")} <b>{now.cosine.toFixed(3)}</b> <small class="quiet">{say("live_made")}</small></h2>
      {now.shares.map((shares, side) => (
        <p key={side}>{shares.map((share, at) => (
          <span key={at} title={share.toFixed(3)} class={share < 0 ? "less" : "more"} style={{ "--share": Math.abs(share) / most }}><bdi>{now.labels[side][at]}</bdi><small>{short(share)}</small></span>
        ))}</p>
      ))}
    </div>
  );
}
