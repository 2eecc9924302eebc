// A message in the middle of an otherwise empty page.
import type { ComponentChildren } from "preact";

export const EmptyCentre = ({ children }: { children: ComponentChildren }) => (
  <div class="centre" id="head"><section class="panel"><p class="quiet hint">{children}</p></section></div>
);
