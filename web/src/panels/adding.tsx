// The switch with which a tap or a key adds words and heads to those that were picked before.
import { adding, toggleAdding } from "../heads/several";
import { say } from "../words";

export const Adding = () => (
  <button class="adding" aria-pressed={adding.value}
    onClick={toggleAdding}>{say("adding")} <kbd>a</kbd></button>
);
