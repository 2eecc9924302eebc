// What a panel asks for and draws once it is there.
import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";

/** The answer to a question, known by its key; null until it is there, or if there is no key. */
export function useFetched<Found>(key: string, fetch: () => Promise<Found>): Found | null {
  const held = useSignal<{ key: string; found: Found } | null>(null);
  useEffect(() => {
    let alive = key !== "";
    if (alive) void fetch().then((found) => { if (alive) held.value = { key, found }; }, () => undefined);
    return () => { alive = false; };
  }, [key]);
  return held.value?.key === key ? held.value.found : null;
}
