// The controls that a reader rarely needs stand behind one button. Whether they are open is kept in this browser.
import { effect, signal } from "@preact/signals";
import { say } from "../words";

const NAME = "headscope.tools";

export const toolsOpen = signal(false);

/** Files and notebooks may have no storage, or forbid it: then nothing is kept. */
export function followTools(): void {
  try {
    toolsOpen.value = localStorage.getItem(NAME) === "1";
  } catch {
    // a frame without storage
  }
  effect(() => {
    const open = toolsOpen.value;
    try {
      localStorage.setItem(NAME, open ? "1" : "0");
    } catch {
      // a frame without storage
    }
  });
}

export const ToolsButton = () => (
  <button class="menu" aria-expanded={toolsOpen.value} data-test="tools" onClick={() => { toolsOpen.value = !toolsOpen.value; }}>
    {say("tools")} <kbd>o</kbd>
  </button>
);
