// The list of keys, and a paragraph about what a head is.
import { say, type Word } from "../words";
import * as state from "../state/state";
import { Dialog } from "./dialog";

const KEYS: [string, Word][] = [
  ["← → ↑ ↓", "help_neighbours"], ["j k · J K", "help_rows"], ["Enter", "help_enter"], ["/", "find"], ["Esc", "help_escape"],
  ["l m b p", "help_modes"], ["+ − 0", "help_zoom"], ["s w n", "help_toggles"], ["e E", "help_ranked"], ["⇧ + click", "help_choose"], ["⇧ · Ctrl + click · a", "help_several"], ["f", "help_findings"], ["1 2 3 4 5", "help_panes"], ["[ ]", "help_texts"], ["o", "tools"],
  ["x · M · X", "help_causes"], ["t · T", "help_table"], ["S", "help_share"],
];

export const Help = () => (
  <Dialog open={state.help} title={say("help_what")}>
    <p>{say("help_what_says")}</p>
    <p class="formula">p<sub>ij</sub> = softmax<sub>j</sub>(q<sub>i</sub> · k<sub>j</sub> / √d)</p>
    <h1>{say("help_title")}</h1>
    <dl>{KEYS.map(([keys, word]) => <div key={keys}><dt>{keys.split(" · ").map((one) => <><kbd>{one}</kbd> </>)}</dt><dd>{say(word)}</dd></div>)}</dl>
  </Dialog>
);
