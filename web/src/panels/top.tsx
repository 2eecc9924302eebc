// The header: model, panes, tabs, language, theme, help.
import { count, say } from "../words";
import * as state from "../state/state";
import { closeTrace, doc, docs, lookAt, panes } from "../state/store";
import { hasModel, trouble } from "../model/remote";
import { fullName, shortNames } from "../text/naming";
import { title } from "../heads/several";
import { hasRibbon } from "../text/sentence";
import { Save } from "./save";
import { Settings } from "./settings";
import { Sign } from "./controls";

export function Top() {
  const info = doc.value?.info;
  const names = shortNames();
  return (
    <header class={`top${state.unfolded.value ? " unfolded" : ""}`}>
      <a class="skip" href="#" onClick={(event) => { event.preventDefault(); document.getElementById("head")?.scrollIntoView(); }}>{say("skip")}</a>
      <div class="row spread">
        <div class="row">
          <strong class="brand">headscope</strong>
          {info && <span class="quiet about"><span class="model" title={info.model}>{info.name}</span> · {say("layers_heads", { layers: info.layers.length, heads: info.heads })} · {say("tokens", { n: count(info.queries.tokens.length) })}</span>}
        </div>
        {info && <button class="fold" aria-expanded={state.unfolded.value} onClick={() => state.flip(state.unfolded)}>{title()} ▾</button>}
        {!hasModel.value && !hasRibbon() && <div class="typed" title={`${doc.value?.name ?? ""}\n${say("offline_keys")}`}><bdi>{doc.value?.name}</bdi></div>}
        <nav class="row panes">
          {panes.value.map((name) => (
            <button key={name} aria-pressed={state.pane.value === name} data-test={`pane-${name}`}
              onClick={() => { state.pane.value = name; state.unfolded.value = false; }}>{say(`pane_${name}`)}</button>
          ))}
        </nav>
        <div class="row acts">
          {info && <><button data-test="share" onClick={() => { state.sharing.value = true; }}>{say("share")}</button><Save /></>}
          <Settings say={say} />
          <button data-test="help" onClick={() => state.flip(state.help)}>{say("help_short")}</button>
        </div>
      </div>
      {docs.value.length > 1 && (
        <div class="row tabs">
          {docs.value.map((tab, index) => (
            <span key={tab.id} class={`tab${tab === doc.value ? " on" : ""}`}>
              <button data-test="tab" aria-pressed={tab === doc.value} title={`${names[index]}\n${fullName(tab)}`} onClick={() => lookAt(index)}><bdi>{names[index]}</bdi></button>
              <Sign class="plain" says={say("tab_close", { text: names[index] })} onClick={() => closeTrace(index)}>×</Sign>
            </span>
          ))}
        </div>
      )}
      <p class={`trouble${trouble.value ? "" : " none"}`} role="alert">{trouble.value}{trouble.value && <> <button onClick={() => { trouble.value = null; }}>{say("close")}</button></>}</p>
    </header>
  );
}
