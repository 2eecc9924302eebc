// One of a few: a button for each.
import type { Signal } from "@preact/signals";

export function Switch<Name extends string>({ held, names, says, test, title }: {
  held: Signal<Name>; names: readonly Name[]; says: (name: Name) => string; test: string; title?: string;
}) {
  return (
    <span class="switch" role="group" title={title}>
      {names.map((name) => (
        <button key={name} aria-pressed={held.value === name} data-test={`${test}-${name}`} onClick={() => { held.value = name; }}>{says(name)}</button>
      ))}
    </span>
  );
}
