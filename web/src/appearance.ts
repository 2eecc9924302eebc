// How a page looks to this reader, whatever stands on it: theme and language.
import { effect, signal } from "@preact/signals";

export const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export const theme = signal<Theme>("auto");
/** Empty: the browser's. */
export const language = signal("");
/** True while the screen is dark. */
export const dark = signal(false);

/** Keep the style sheet at the theme, and the theme at the system's where it is not chosen. */
export function followTheme(): void {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = (): void => {
    const now = theme.value === "dark" || (theme.value === "auto" && system.matches);
    // the style sheet first: what is drawn anew takes its colours from there
    document.documentElement.dataset.theme = now ? "dark" : "light";
    dark.value = now;
  };
  effect(apply);
  system.addEventListener("change", apply);
}
