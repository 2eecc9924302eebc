// The middle of the page where it has nothing but a word to say.
import type { ComponentChildren } from "preact";

export const EmptyCentre = ({ children }: { children: ComponentChildren }) => (
  <main class="centre" id="head"><section class="panel"><p class="quiet hint">{children}</p></section></main>
);
