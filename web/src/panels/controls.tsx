// Controls of every panel: buttons, menus, switches, fields, bars; a pane; a component that is drawn again only if it has to be.
import type { ComponentChild, ComponentChildren, FunctionComponent, JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Signal } from "@preact/signals";

/** A button with an icon only; its tooltip and its label for screen readers say what it does. */
export const Sign = ({ says, ...rest }: { says: string } & JSX.IntrinsicElements["button"]) => <button title={says} aria-label={says} {...rest} />;

/** One of several, in a menu; `held` is set to it, unless something else is to be done. */
export function Menu<Name extends string | number>({ held, names, says, test, onPick = (name) => { held!.value = name as Name; }, ...rest }: {
  held?: Signal<Name>; names: readonly Name[]; says: (name: Name) => string; test: string; onPick?: (name: string) => void;
} & Omit<JSX.SelectHTMLAttributes<HTMLSelectElement>, "onChange">) {
  return (
    <select data-test={test} value={held?.value} onChange={(event) => onPick(event.currentTarget.value)} {...rest}>
      {names.map((name) => <option key={name} value={name}>{says(name)}</option>)}
    </select>
  );
}

/** One of a few: a button for each. */
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

/** A share that can be moved, 0 to 1. */
export const Range = ({ held, least = 0, test }: { held: Signal<number>; least?: number; test?: string }) => (
  <input type="range" min={least} max="1" step="0.01" value={held.value} data-test={test} onInput={(event) => { held.value = Number(event.currentTarget.value); }} />
);

/** A line of text. Keys that are typed in it are no commands of the page; Escape leaves it. */
export const Field = ({ label, test, onText, onEnter, onEscape, ...rest }: {
  value: string; label: string; test?: string; onText?: (text: string) => void; onEnter?: (event: KeyboardEvent) => void; onEscape?: () => void;
} & Omit<JSX.IntrinsicElements["input"], "value" | "label">) => (
  <input aria-label={label} data-test={test} dir="auto" spellcheck={false} onInput={(event) => onText?.(event.currentTarget.value)}
    onKeyDown={(event) => {
      event.stopPropagation();
      if (event.key === "Enter" && !event.isComposing) onEnter?.(event);
      if (event.key === "Escape") {
        onEscape?.();
        event.currentTarget.blur();
      }
    }} {...rest} />
);

/** The filled part of a bar: a share of its track, 0 to 1. */
export const Fill = ({ share }: { share: number }) => <i style={{ width: `${100 * Math.min(1, Math.max(0, share || 0))}%` }} />;

/** Numbers on a line, each over what it is; those that are empty are left out. */
export const Numbers = ({ of }: { of: [test: string, value: string, says: ComponentChildren][] }) => (
  <ol class="numbers5">{of.map(([test, value, says]) => value && <li key={test}><b data-test={test}>{value}</b><small>{says}</small></li>)}</ol>
);

/** The middle of the page: a pane, or a message where there is nothing else. */
export const Centre = ({ pane = "", children, ...rest }: { pane?: string; tabIndex?: number; children: ComponentChildren }) => (
  <div class="centre" id="head"><section class={`panel ${pane}`} {...rest}>{children}</section></div>
);

export const EmptyCentre = ({ children }: { children: ComponentChildren }) => <Centre><p class="quiet hint">{children}</p></Centre>;

/** A component that renders again only if its properties have changed; it reads no signals. */
export const memo = <P extends object>(draw: (props: P) => ComponentChild): FunctionComponent<P> =>
  (props) => useMemo(() => draw(props), Object.values(props)) as ReturnType<FunctionComponent<P>>;
