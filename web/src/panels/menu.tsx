// One of several, in a menu.
import type { JSX } from "preact";

export function Menu({ names, says, test, onPick, ...rest }: {
  names: readonly (string | number)[]; says: (name: never) => string; test: string; onPick: (name: string) => void;
} & Omit<JSX.SelectHTMLAttributes<HTMLSelectElement>, "onChange">) {
  return (
    <select data-test={test} onChange={(event) => onPick(event.currentTarget.value)} {...rest}>
      {names.map((name) => <option key={name} value={name}>{says(name as never)}</option>)}
    </select>
  );
}
