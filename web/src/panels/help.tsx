// The keys, and what a head is, in a paragraph.
import { say, type Word } from "../words";
import * as state from "../state";

const KEYS: [string, Word][] = [
  ["← → ↑ ↓", "help_arrows"], ["j k · J K", "help_rows"], ["Enter", "help_enter"], ["/", "help_find"], ["Esc", "help_escape"],
  ["l m b", "help_modes"], ["+ − 0", "help_zoom"], ["s w n", "help_toggles"], ["e E", "help_extreme"], ["1 2 3 4", "help_panes"],
  ["x · M", "help_causes"], ["t · T", "help_table"],
];

export function Help() {
  if (!state.help.value) return null;
  return (
    <div class="veil" onClick={() => { state.help.value = false; }}>
      <div class="dialog" role="dialog" aria-modal="true" aria-label={say("help_title")} onClick={(event) => event.stopPropagation()}>
        <div class="row spread"><h1>{say("help_what")}</h1><button autoFocus onClick={() => { state.help.value = false; }}>{say("close")}</button></div>
        <p>{say("help_what_says")}</p>
        <p class="formula">p<sub>ij</sub> = softmax<sub>j</sub>(q<sub>i</sub> · k<sub>j</sub> / √d)</p>
        <h1>{say("help_title")}</h1>
        <dl>{KEYS.map(([keys, word]) => <div key={keys}><dt><kbd>{keys}</kbd></dt><dd>{say(word)}</dd></div>)}</dl>
      </div>
    </div>
  );
}
