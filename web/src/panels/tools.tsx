// The controls that a reader rarely needs stand behind one button. Whether they are open is kept in this browser.
import { keeping } from "../state/kept";
import { flip } from "../state/state";
import { say } from "../words";

export const toolsOpen = keeping("tools", Boolean);

export const ToolsButton = () => (
  <button class="menu" aria-expanded={toolsOpen.value} data-test="tools" onClick={() => flip(toolsOpen)}>
    {say("tools")} <kbd>o</kbd>
  </button>
);
