// Where another text is typed, for the model behind the page to run.
import { useEffect, useRef } from "preact/hooks";
import { batch, useSignal } from "@preact/signals";
import { clearSets } from "../heads/asking";
import { openOnFinding } from "../state/opening";
import { run, running, trouble } from "../model/remote";
import { changing } from "../text/sentence";
import { readable } from "../text/shown";
import * as state from "../state/state";
import { doc, lookAt, placeOfDoc } from "../state/store";
import { say } from "../words";
import { Field, Sign } from "./controls";

export function TextBox() {
  const info = doc.value!.info;
  const written = useSignal({ text: info.text ?? readable(info.queries, Infinity, false), pair: info.pair ?? "", wide: info.pair !== null });
  const { text, pair, wide } = written.value;
  const write = (more: Partial<typeof written.value>): void => { written.value = { ...written.value, ...more }; };
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
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => form.current!.querySelector("input")!.focus(), []);
  return (
    <form ref={form} class="row typed box" onSubmit={(event) => { event.preventDefault(); void send(); }}>
      <Field value={text} label={say("text")} test="text" onText={(typed) => { write({ text: typed }); trouble.value = null; }} />
      {wide && <Field value={pair} label={say("text_pair")} placeholder={say("text_pair")} onText={(typed) => write({ pair: typed })} />}
      <Sign type="button" says={say("text_pair")} onClick={() => write({ wide: !wide })}>{wide ? "−" : "+"}</Sign>
      <Sign type="submit" says={say("causes_run")} disabled={running.value !== null}>⏎</Sign>
      <span class="quiet running" role="status">{running.value}</span>
    </form>
  );
}
