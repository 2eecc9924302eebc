// A line of text. Keys that are typed in it are no commands of the page; Escape leaves it.
import type { JSX } from "preact";

export const Field = ({ label, test, onText, onEnter, ...rest }: {
  value: string; label: string; test?: string; onText: (text: string) => void; onEnter?: () => void;
} & Omit<JSX.IntrinsicElements["input"], "value" | "label">) => (
  <input aria-label={label} data-test={test} dir="auto" spellcheck={false} onInput={(event) => onText(event.currentTarget.value)}
    onKeyDown={(event) => {
      event.stopPropagation();
      if (event.key === "Enter" && !event.isComposing) onEnter?.();
      if (event.key === "Escape") event.currentTarget.blur();
    }} {...rest} />
);
