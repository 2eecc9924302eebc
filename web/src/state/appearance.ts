// The reader's theme and language, shared by all pages.
import { effect, signal } from "@preact/signals";

export const THEMES = ["auto", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];

export const theme = signal<Theme>("auto");
/** Empty for the browser's language. */
export const language = signal("");
/** The theme of what the page is embedded in; null where that is unknown. */
export const around = signal<"light" | "dark" | null>(null);
/** True while the page is on paper: it is light there, and as wide as a sheet. */
export const paper = signal(false);
/** True in dark mode. */
export const dark = signal(false);

/** Apply the theme to the style sheet, and follow the system's theme unless one is chosen. */
export function followTheme(): void {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = (): void => {
    const now = !paper.value && (theme.value === "dark" || (theme.value === "auto" && (around.value ? around.value === "dark" : system.matches)));
    // the style sheet first, because redrawing reads its colours
    document.documentElement.dataset.theme = now ? "dark" : "light";
    dark.value = now;
  };
  effect(apply);
  system.addEventListener("change", apply);
}
