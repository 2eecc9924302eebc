// On a phone, one thing at a time: the sentence, all heads, the chain or the causes, and a bar that goes to them.
import * as state from "../state/state";
import { say } from "../words";

const SCREENS = ["head", "heads", "chain", "causes"] as const;
type Screen = (typeof SCREENS)[number] | "other";

/** A drawing of 18 by 18 for each: lines, squares, a link, bars from one line. */
const ICONS: Record<(typeof SCREENS)[number], string> = {
  head: "M0 3h18M0 9h18M0 15h11",
  heads: "M1 1h6v6h-6zM11 1h6v6h-6zM1 11h6v6h-6zM11 11h6v6h-6z",
  chain: "M0 9h5M13 9h5M5 6l3 3l-3 3M10 6l3 3l-3 3",
  causes: "M2 0v18M2 3h12M2 9h7M2 15h3",
};

/** What a phone shows; wider pages show all of it at once. */
export const screen = (): Screen =>
  state.pane.value === "causes" ? "causes" : state.pane.value !== "head" ? "other" : state.chain.value ? "chain" : state.heads.value ? "heads" : "head";

function go(name: (typeof SCREENS)[number]): void {
  state.pane.value = name === "causes" ? "causes" : "head";
  state.chain.value = name === "chain";
  state.heads.value = name === "heads";
  state.unfolded.value = false;
  scrollTo(0, 0);
}

export const Bar = () => (
  <nav class="screens" aria-label={say("screens")}>
    {screen() === "heads" && <h1 class="unseen">{say("screen_heads")}</h1>}
    {SCREENS.map((name) => (
      <button key={name} aria-pressed={screen() === name} data-test={`screen-${name}`} onClick={() => go(name)}>
        <svg viewBox="-1 -1 20 20" width="20" height="20" aria-hidden="true"><path d={ICONS[name]} /></svg>{say(`screen_${name}`)}
      </button>
    ))}
  </nav>
);
