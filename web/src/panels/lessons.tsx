// What a reader learns in the first minute, until it is read: three sentences above the page.
import { keeping } from "../state/kept";
import { say } from "../words";

const read = keeping("lessons", Boolean);

export function Lessons() {
  // a notebook would tell it anew with each cell
  if (read.value || parent !== window) return null;
  return (
    <section class="lessons" aria-label={say("help_short")}>
      <ol>
        {(["word", "row", "heads"] as const).map((name) => <li><b>{say(`lesson_${name}`)}</b> {say(`lesson_${name}_says`)}</li>)}
      </ol>
      <button onClick={() => { read.value = true; }}>{say("lessons_read")}</button>
    </section>
  );
}
