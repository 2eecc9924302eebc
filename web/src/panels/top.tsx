// The header: model, text, tabs, language, theme, help.
import { useState } from "preact/hooks";
import { count, say } from "../words";
import * as state from "../state";
import { closeTrace, doc, docs, lookAt, placeOfDoc } from "../store";
import { run, running, start, trouble } from "../remote";
import { clearSets } from "../asking";
import { fullName, shortNames } from "../naming";
import { readable } from "../shown";
import { Settings } from "./settings";
import { Sign } from "./sign";

export function Top() {
  const info = doc.value?.info;
  const names = shortNames();
  const server = start.value.home === "server";
  return (
    <header class="top">
      <div class="row spread">
        <div class="row">
          <strong class="brand">headscope</strong>
          {info && <span class="model" data-test="model" title={info.model}>{info.name}</span>}
          {info && <span class="quiet">{say("layers_heads", { layers: info.layers.length, heads: info.heads })}</span>}
          {info?.anatomy && <span class="quiet total">{say("numbers", { n: count(info.anatomy.total) })}</span>}
          {info && <span class="quiet">{info.queries.tokens.length === 1 ? say("tokens_one") : say("tokens", { n: count(info.queries.tokens.length) })}</span>}
        </div>
        {!server && <div class="typed" title={`${doc.value?.name ?? ""}\n${say("text_offline")}`}><bdi>{doc.value?.name}</bdi></div>}
        <nav class="row panes" aria-label="headscope">
          {state.PANES.map((name) => (
            <button key={name} class={state.pane.value === name ? "on" : ""} aria-pressed={state.pane.value === name} data-test={`pane-${name}`}
              onClick={() => { state.pane.value = name; }}>{say(`pane_${name}`)}</button>
          ))}
        </nav>
        <div class="row">
          {info && <button data-test="share" onClick={() => { state.sharing.value = true; }}>{say("share")}</button>}
          <Settings />
          <Sign says={say("help")} data-test="help" onClick={() => { state.help.value = !state.help.value; }}>?</Sign>
        </div>
      </div>
      {server && info && <TextBox key={doc.value!.id} />}
      {docs.value.length > 1 && (
        <div class="row tabs" role="tablist">
          {docs.value.map((tab, index) => (
            <span key={tab.id} class={`tab${tab === doc.value ? " on" : ""}`}>
              <button role="tab" aria-selected={tab === doc.value} title={`${names[index]}\n${fullName(tab)}`} onClick={() => lookAt(index)}><bdi>{names[index]}</bdi></button>
              <Sign class="plain" says={say("tab_close", { text: names[index] })} onClick={() => closeTrace(index)}>×</Sign>
            </span>
          ))}
        </div>
      )}
      <p class={`trouble${trouble.value ? "" : " none"}`} role="alert">{trouble.value}{trouble.value && <> <button onClick={() => { trouble.value = null; }}>{say("close")}</button></>}</p>
    </header>
  );
}

function TextBox() {
  const info = doc.value!.info;
  const [text, write] = useState(info.text ?? readable(info.queries, Infinity, false));
  const [pair, writePair] = useState(info.pair ?? "");
  const [wide, widen] = useState(info.pair !== null);
  const send = async (): Promise<void> => {
    if (!text.trim()) {
      trouble.value = say("text_empty");
      return;
    }
    const result = await run({ text, pair: wide && pair.trim() ? pair : null }, null);
    if (result) {
      state.query.value = null;
      state.key.value = null;
      state.box.value = null;
      clearSets();
      lookAt(placeOfDoc(result));
    }
  };
  const keys = (event: KeyboardEvent): void => {
    event.stopPropagation();
    if (event.key === "Enter" && !event.isComposing) void send();
    if (event.key === "Escape") (event.currentTarget as HTMLElement).blur();
  };
  return (
    <form class="row typed box" onSubmit={(event) => { event.preventDefault(); void send(); }}>
      <input value={text} aria-label={say("text")} data-test="text" onInput={(event) => { write(event.currentTarget.value); trouble.value = null; }} onKeyDown={keys} dir="auto" spellcheck={false} />
      {wide && <input value={pair} aria-label={say("text_pair")} placeholder={say("text_pair")} onInput={(event) => writePair(event.currentTarget.value)} onKeyDown={keys} dir="auto" spellcheck={false} />}
      <Sign type="button" says={say("text_pair")} onClick={() => widen(!wide)}>{wide ? "−" : "+"}</Sign>
      <Sign type="submit" says={say("text_run")} disabled={running.value !== null}>⏎</Sign>
      <span class="quiet running" role="status">{running.value}</span>
    </form>
  );
}
