// A message in the middle of an otherwise empty page.
import type { ComponentChildren } from "preact";

export const EmptyCentre = ({ children }: { children: ComponentChildren }) => (
  <main class="centre" id="head"><section class="panel"><p class="quiet hint">{children}</p></section></main>
);
