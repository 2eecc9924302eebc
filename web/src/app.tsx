// The page: the grid on the left, the head in the middle, the inspector on the right.
import type { ComponentType } from "preact";
import { say } from "./words";
import * as state from "./state/state";
import { joint, slotB } from "./state/comparing";
import { remarks } from "./state/opening";
import { column, doc, failure, row } from "./state/store";
import { Anatomy } from "./panels/anatomy";
import { Bar, screen } from "./panels/screens";
import { Cell } from "./panels/cell";
import { Causes } from "./panels/causes";
import { Divider, widths } from "./panels/divider";
import { Findings } from "./panels/findings";
import { Compare } from "./panels/compare";
import { Follow } from "./panels/follow";
import { Grid } from "./panels/grid";
import { Caption, HeadPane } from "./panels/headpane";
import { Help } from "./panels/help";
import { Inspector } from "./panels/inspector";
import { Lessons } from "./panels/lessons";
import { Ribbon } from "./panels/ribbon";
import { Share } from "./panels/share";
import { Sign } from "./panels/controls";
import { Top } from "./panels/top";

const PANES = { head: HeadPane, follow: Follow, compare: Compare, causes: Causes, anatomy: Anatomy };

export function App({ Typing }: { Typing: ComponentType | undefined }) {
  const info = doc.value?.info;
  const Pane = PANES[state.pane.value];
  /** A grid of more layers or heads needs all the room that it can have. */
  const deep = info && (info.layers.length > 8 || info.heads > 12) ? " deep" : "";
  const follows = state.pane.value === "follow";
  const opened = state.chain.value && state.pane.value === "head" && row.value !== null && column.value !== null;
  const { left, right } = widths.value;
  const chosen = { ...(left !== null && { "--left": `${left}px` }), ...(right !== null && { "--right": `${right}px` }) };
  return (
    <>
      <Top />
      {Typing && info && <Typing />}
      {failure.value && <p class="trouble" role="alert">{failure.value} <button onClick={() => { failure.value = null; }}>{say("close")}</button></p>}
      {info && state.pane.value === "head" && !opened && <Lessons />}
      {info && !follows && !(state.pane.value === "compare" && slotB.value && joint.value) && <Ribbon />}
      {info && state.pane.value === "head" && !opened && <Findings />}
      {info && <main class={`columns at-${state.pane.value} on-${screen()}${opened ? " opened" : ""}${deep}`} style={{ "--across": info.heads, "--layers": info.layers.length, ...chosen }}>
        {!follows && <><Grid /><Divider side="left" /></>}<Pane />{state.pane.value === "head" && <><Cell key={doc.value!.id} /><Divider side="right" /></>}{!follows && <Inspector />}{state.pane.value === "head" && <Caption />}
      </main>}
      <p class="said" role="status" aria-live="polite">{state.status.value || remarks.value.map(({ word, parts }) => say(word, parts)).join(" ")}
        {!state.status.value && remarks.value.length > 0 && <Sign class="plain" says={say("close")} onClick={() => { remarks.value = []; }}>×</Sign>}</p>
      {info && <Bar />}
      <Help />
      <Share />
    </>
  );
}
