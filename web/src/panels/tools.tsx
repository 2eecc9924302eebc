// The controls that a reader rarely needs stand behind one button. Whether they are open is kept in this browser.
import { effect, signal } from "@preact/signals";
import { keep, kept } from "../state/kept";
import { flip } from "../state/state";
import { say } from "../words";

export const toolsOpen = signal(false);

export function followTools(): void {
  toolsOpen.value = kept("tools") === 1;
  effect(() => keep("tools", Number(toolsOpen.value)));
}

export const ToolsButton = () => (
  <button class="menu" aria-expanded={toolsOpen.value} data-test="tools" onClick={() => flip(toolsOpen)}>
    {say("tools")} <kbd>o</kbd>
  </button>
);
