// A line of text. Keys that are typed in it are no commands of the page; Escape leaves it.
import type { JSX } from "preact";

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
