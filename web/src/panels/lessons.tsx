// What a reader learns in the first minute, until it is read: three sentences above the page.
import { signal } from "@preact/signals";
import { keep, kept } from "../state/kept";
import { say } from "../words";

/** A notebook would tell it anew with each cell. */
const read = signal(parent !== window || kept("lessons") !== null);

export function Lessons() {
  if (read.value) return null;
  return (
    <section class="lessons" aria-label={say("help")}>
      <ol>
        {(["word", "row", "heads"] as const).map((name) => <li><b>{say(`lesson_${name}`)}</b> {say(`lesson_${name}_says`)}</li>)}
      </ol>
      <button onClick={() => { read.value = true; keep("lessons", true); }}>{say("lessons_read")}</button>
    </section>
  );
}
