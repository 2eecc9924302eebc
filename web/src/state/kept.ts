// What this browser keeps for the page. Files and notebooks may have no storage, or forbid it: then nothing is kept.
import { effect, signal, type Signal } from "@preact/signals";

/** A signal whose value this browser keeps for the next page; `read` makes it of what was kept, or of null. */
export function keeping<T>(name: string, read: (found: unknown) => T): Signal<T> {
  const place = `headscope.${name}`;
  let found: unknown = null;
  try {
    found = JSON.parse(localStorage.getItem(place) ?? "null");
  } catch {
    // a frame without storage
  }
  const held = signal(read(found));
  effect(() => {
    const text = JSON.stringify(held.value);
    try {
      localStorage.setItem(place, text);
    } catch {
      // a frame without storage
    }
  });
  return held;
}
