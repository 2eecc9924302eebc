// A sentence is read at a glance, and stands on top; a longer text is prose.
import { signal } from "@preact/signals";
import { shown } from "../state/store";

/** Texts above this many tokens open as prose: lines would be a tangle. */
export const TANGLE = 64;

/** True while another text is typed. */
export const changing = signal(false);

/** True where the text is a sentence. */
export const hasRibbon = (): boolean => {
  const words = shown.value;
  return Boolean(words && Math.max(words.rows.length, words.columns.length) <= TANGLE);
};
