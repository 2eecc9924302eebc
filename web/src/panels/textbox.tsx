// Where another text is typed, for the model behind the page to run.
import { useEffect, useRef, useState } from "preact/hooks";
import { batch } from "@preact/signals";
import { clearSets } from "../heads/asking";
import { openOnFinding } from "../state/opening";
import { run, running, trouble } from "../model/remote";
import { changing } from "../text/sentence";
import { readable } from "../text/shown";
import * as state from "../state/state";
import { doc, lookAt, placeOfDoc } from "../state/store";
import { say } from "../words";
import { Sign } from "./sign";

export function TextBox() {
  const info = doc.value!.info;
  const [text, write] = useState(info.text ?? readable(info.queries, Infinity, false));
  const [pair, writePair] = useState(info.pair ?? "");
  const [wide, widen] = useState(info.pair !== null);
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => { box.current?.focus(); }, []);
  const send = async (): Promise<void> => {
    if (!text.trim()) {
      trouble.value = say("text_empty");
      return;
    }
    const result = await run({ text, pair: wide && pair.trim() ? pair : null }, null);
    if (result) {
      batch(() => {
        state.query.value = state.key.value = state.box.value = null;
        clearSets();
        changing.value = false;
        lookAt(placeOfDoc(result));
        openOnFinding(result);
      });
    }
  };
  const keys = (event: KeyboardEvent): void => {
    event.stopPropagation();
    if (event.key === "Enter" && !event.isComposing) void send();
    if (event.key === "Escape") (event.currentTarget as HTMLElement).blur();
  };
  return (
    <form class="row typed box" onSubmit={(event) => { event.preventDefault(); void send(); }}>
      <input ref={box} value={text} aria-label={say("text")} data-test="text" onInput={(event) => { write(event.currentTarget.value); trouble.value = null; }} onKeyDown={keys} dir="auto" spellcheck={false} />
      {wide && <input value={pair} aria-label={say("text_pair")} placeholder={say("text_pair")} onInput={(event) => writePair(event.currentTarget.value)} onKeyDown={keys} dir="auto" spellcheck={false} />}
      <Sign type="button" says={say("text_pair")} onClick={() => widen(!wide)}>{wide ? "−" : "+"}</Sign>
      <Sign type="submit" says={say("causes_run")} disabled={running.value !== null}>⏎</Sign>
      <span class="quiet running" role="status">{running.value}</span>
    </form>
  );
}
