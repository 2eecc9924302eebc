// Numbers of every head that somebody waits for: requested one layer after the other.
import { effect, type Signal } from "@preact/signals";
import { failure } from "../state/store";
import { say } from "../words";

/** Numbers that arrive: `done` heads so far. */
export interface Gathered {
  key: string;
  done: number;
}

/** The answers of a layer's heads, one after the other. */
export type Ask<Answer> = (layer: number) => Promise<ArrayLike<Answer>>;

interface Gathering<Held extends Gathered, Answer> {
  /** Before the first answer. */
  blank: Held;
  layers: number;
  heads: number;
  ask: Ask<Answer>;
  /** What the answers of heads from here on change. */
  add: (held: Held, answers: ArrayLike<Answer>, from: number) => Partial<Held>;
}

/** Request one layer after the other until the selection changes; complete results are cached. */
export function gather<Held extends Gathered, Answer>(target: Signal<Held | null>, most: number, wanted: () => Gathering<Held, Answer> | null): void {
  const complete = new Map<string, Held>();
  effect(() => {
    const now = wanted();
    if (!now) {
      target.value = null;
      return;
    }
    const { blank, layers, heads, ask, add } = now;
    const { key } = blank;
    const waits = (): boolean => target.peek()?.key === key;
    if (waits()) return;
    const known = complete.get(key);
    target.value = known ?? blank;
    if (known) return;
    void (async () => {
      for (let layer = 0; layer < layers; layer++) {
        const answers = await ask(layer);
        if (!waits()) return;
        target.value = { ...target.peek()!, ...add(target.peek()!, answers, layer * heads), done: (layer + 1) * heads };
      }
      complete.set(key, target.peek()!);
      if (complete.size > most) complete.delete(complete.keys().next().value!);
    })().catch((error: Error) => { if (waits()) failure.value = say("head_refused", { why: error.message }); });
  });
}

/** Head by head, as long as somebody waits for it. */
export function each<Answer>(heads: number, held: Signal<Gathered | null>, key: string, ask: (layer: number, head: number) => Promise<Answer>): Ask<Answer> {
  return async (layer) => {
    const found: Answer[] = [];
    for (let head = 0; head < heads && held.peek()?.key === key; head++) found.push(await ask(layer, head));
    return found;
  };
}
