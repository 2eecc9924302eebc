// The guess for [MASK] without each head, on a page that runs its model.
import { computed, signal } from "@preact/signals";
import { asked } from "../state/comparing";
import { doc } from "../state/store";

/** Without one head: the likeliest word, its probability, what the guess with the head loses of its own, and whether it turns into another word. */
export interface Guess {
  layer: number;
  head: number;
  label: string;
  share: number;
  loss: number;
  turns: boolean;
}

/** Of one text, by the place of each head; undefined until it was silenced. */
export const held = signal<{ doc: number; heads: (Guess | undefined)[] } | null>(null);

/** Of the text in view; null where it has none. */
export const guesses = computed(() => (held.value?.doc === doc.value?.id ? held.value?.heads ?? null : null));

/** What stands in the grid for a head, while that is asked; a build without a model leaves it out. */
export const guessAt = (n: number): Guess | undefined => (import.meta.env.MODE !== "page" && asked.value === "guess" ? guesses.value?.[n] : undefined);
