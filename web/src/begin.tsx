// How a page begins: read the embedded data, open the embedded traces, show them.
import type { ComponentType } from "preact";
import { effect } from "@preact/signals";
import "./base.css";
import "./style.css";
import { App } from "./app";
import { render } from "preact";
import { listen } from "./keyboard";
import { catalog } from "./heads/catalog";
import { followAway } from "./state/away";
import { backend, hasModel, outcomes, start, type Start } from "./model/remote";
import { Server } from "./model/server";
import { followTheme } from "./state/appearance";
import { isFresh } from "./state/hash";
import { followHash, noStep } from "./state/steps";
import * as state from "./state/state";
import { FIELDS, FLOWING, status } from "./state/state";
import { brought, correct, followRemarks, openOnFinding } from "./state/opening";
import { followNotebook, told } from "./notebook";
import { fetchRuns, followEffects } from "./model/runs";
import { followNumbers } from "./heads/statistics";
import { followSifted } from "./heads/sifted";
import { followPaper } from "./drawing/paper";
import { followRow, followSelection } from "./drawing/pictures";
import { followSeveral } from "./heads/several";
import { followInk } from "./text/ink";
import { followOverlay } from "./drawing/overlay";
import { chunks, doc, docs, failure, followRest, followText, openTrace, reason, type Doc } from "./state/store";
import { openFile } from "./panels/compare";
import { say } from "./words";
import { followLanguage } from "./words/speech";

const page = document.getElementById("page")!;

/** What only a page with a model has. */
export interface Typing {
  open(waiting: HTMLElement): Promise<Doc>;
  /** Where a text begins that nobody has looked at. */
  look(one: Doc): void;
  follow(): void;
  Panel: ComponentType;
}

let typing: Typing | null = null;

/** Clear the status message after a while. */
function followSaid(): void {
  let waiting = 0;
  effect(() => {
    if (!status.value) return;
    clearTimeout(waiting);
    waiting = window.setTimeout(() => { status.value = ""; }, 4000);
  });
}

async function open(): Promise<void> {
  catalog.value = about.statistics ?? [];
  start.value = { home: "file", traces: 0, ...about };
  if (typing) {
    const opened = await typing.open(page);
    typing.follow();
    noStep();
    if (fresh && !brought.value) typing.look(opened);
    else correct();
    show();
    return;
  }
  if (hasModel.value) backend.value = new Server();
  if (!start.value.traces) failure.value = say("no_trace");
  for (let n = 0; n < start.value.traces; n++) {
    const all = start.value.bytes?.[n] ?? 0;
    if (n === 0) page.textContent = say("opening", { mb: (all / 1e6).toFixed(1) });
    const remote = start.value.remote?.[n] ?? null;
    if (remote && start.value.outcomes?.[n]) outcomes.value = { ...outcomes.value, [remote]: start.value.outcomes[n] };
    const { names, of } = start.value;
    const changed = of?.[n] ?? null;
    const opened = await openTrace({ parts: chunks((part) => `hs-trace-${n}${part ? `-${part}` : ""}`), all }, names?.[n] ?? null, remote, changed && { ...changed, origin: docs.value[changed.origin]?.id ?? -1 });
    noStep();
    if (fresh && n === 0) openOnFinding(opened);
    if (!fresh && n === start.value.traces - 1) correct();
    if (n === 0) void fetchRuns();
    show();
  }
}

let shown = false;

function show(): void {
  if (shown) return;
  shown = true;
  page.textContent = "";
  render(<App Typing={typing?.Panel} />, page);
}

/** What went wrong at one head or in one pane is not said at the next. */
function followFailure(): void {
  let last = "";
  effect(() => {
    const now = [state.pane.value, state.trace.value, state.layer.value, state.head.value].join("/");
    if (last && last !== now && doc.peek()) failure.value = null;
    last = now;
  });
}

const about = JSON.parse(document.getElementById("hs-about")?.textContent ?? "{}") as Partial<Start>;
const given = told ?? location.hash;
const bare = isFresh(given);
const fresh = bare && !about.state;

/** Open what the page holds, and follow what the reader does. */
export function begin(withModel: Typing | null): void {
  // what such a page saves is without its model
  if (about.model) typing = withModel;
  followHash(FIELDS, bare && about.state ? `${given || "#"}&${about.state}` : given, FLOWING);
  followRemarks();
  addEventListener("hashchange", () => { if (doc.value) correct(); });
  followFailure();
  followTheme();
  followPaper();
  followLanguage();
  followSaid();
  followText();
  followAway();
  followNotebook();
  followSelection();
  followSeveral();
  followRow();
  followInk();
  followOverlay();
  followRest();
  followNumbers();
  followEffects();
  followSifted();
  listen();
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    const file = event.dataTransfer?.files[0];
    if (file) void openFile(file);
  });
  open().catch((error: unknown) => {
    failure.value = say(doc.value ? "file_refused" : "broken", { why: reason(error) });
    show();
  }).finally(show);
}
