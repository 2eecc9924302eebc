// The menu that saves what is on the screen, and says how Python has its numbers.
import { signal } from "@preact/signals";
import { FIGURES, KINDS, partsHere, saveAs, type FigureOf, type Kind } from "../drawing/export";
import { title } from "../heads/several";
import * as state from "../state/state";
import { inPython } from "../text/python";
import { say } from "../words";

export const saving = signal(false);

const Ways = ({ name, kinds, part }: { name: string; kinds: readonly Kind[]; part?: FigureOf }) => (
  <p class="row spread">{name} <span class="row">{kinds.map((kind) => <button key={kind} data-test={`save-${part ?? "head"}-${kind}`}
    onClick={() => { saving.value = false; saveAs(kind, part); }}>{kind}</button>)}</span></p>
);

/** It shuts as what is beside it is pressed; the panel takes the focus of a press on its ground. */
export const Save = () => (
  <details class="save" open={saving.value} onToggle={(event) => { saving.value = event.currentTarget.open; }}
    onFocusOut={({ currentTarget, relatedTarget }) => { saving.value &&= currentTarget.contains(relatedTarget as Node | null); }}>
    <summary>{say("save_figure")}</summary>
    <div class="panel" tabIndex={-1}>{saving.value && <>
      {state.pane.value === "head" && <Ways name={title()} kinds={KINDS} />}
      {partsHere().map(([part, name]) => <Ways key={part} name={name} kinds={FIGURES} part={part} />)}
      <Code />
    </>}</div>
  </details>
);

/** The pinned numbers in Python. */
function Code() {
  const code = inPython();
  return <><p class="row spread">Python <button data-test="copy-python" onClick={() => void navigator.clipboard.writeText(code).then(() => { state.status.value = say("copied_code"); }, () => undefined)}>{say("copy_code")}</button></p><pre class="small" tabIndex={0}>{code}</pre></>;
}
