// The state in the URL: what the reader does is a step in the browser's history, so that Back undoes it.
import { batch, effect, signal } from "@preact/signals";
import { APPEARANCE, fromHash, toHash, type Fields } from "./hash";

/** Acts of the reader so far. A held key and a drag are one act; so is all that follows from it. */
let acts = 0;
/** The act that the latest step belongs to. */
let stepped = 0;
/** Counts the steps. */
export const steps = signal(0);
/** Parts of the address that say nothing to this page. */
export const unread = signal<readonly string[]>([]);

/** What the page does by itself, or what Back leads to, is no step. */
export const noStep = (): void => { stepped = acts; };

/** A click without a pointer comes from a key or a screen reader. */
const begins = (event: Event): boolean =>
  !(event instanceof KeyboardEvent && event.repeat) && !(event.type === "click" && (event as MouseEvent).detail > 0);

const SETTLED = 60;
const inUrl = (): string => location.hash.replace(/^#/, "");

/**
 * Keep the URL and the state in sync, from this hash on. Frames without a URL keep the state in memory. A change of a field
 * that flows, or of the page's appearance, is no step.
 */
export function followHash(fields: Fields, from: string = location.hash, flowing: readonly string[] = []): void {
  for (const kind of ["pointerdown", "keydown", "click", "change"]) {
    addEventListener(kind, (event) => { if (begins(event)) acts++; }, { capture: true });
  }
  unread.value = fromHash(fields, from);
  /** The address that was read or written last: over another one, which is still to be read, nothing is written. */
  let known = inUrl();
  let waiting = 0;
  let due: string | null = null;
  let last: string | null = null;
  const forget = (): void => {
    clearTimeout(waiting);
    due = null;
  };
  const write = (hash: string, how: "pushState" | "replaceState"): void => {
    forget();
    if (inUrl() === hash || inUrl() !== known) return;
    try {
      history[how](null, "", hash ? `#${hash}` : location.pathname + location.search);
    } catch {
      // a frame whose URL can't be changed, or a browser that has seen too many steps
    }
    known = inUrl();
  };
  effect(() => {
    const hash = toHash(fields);
    const now = toHash(fields, (name) => !(name in APPEARANCE || flowing.includes(name)));
    const step = last !== null && now !== last && acts !== stepped;
    last = now;
    if (step) {
      stepped = acts;
      // what flowed before belongs to the step before
      if (due !== null) write(due, "replaceState");
      // a frame's steps would be those of the page around it
      write(hash, window === window.top ? "pushState" : "replaceState");
      steps.value = steps.peek() + 1;
      return;
    }
    due = hash;
    clearTimeout(waiting);
    waiting = window.setTimeout(() => write(hash, "replaceState"), SETTLED);
  });
  addEventListener("popstate", forget);
  addEventListener("hashchange", () => {
    known = inUrl();
    if (inUrl() === toHash(fields)) return;
    noStep();
    batch(() => { unread.value = fromHash(fields, location.hash); });
  });
}
