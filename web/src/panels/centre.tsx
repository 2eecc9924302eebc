// The middle of the page: a pane, or a message where there is nothing else.
import type { ComponentChildren } from "preact";

export const Centre = ({ pane = "", children, ...rest }: { pane?: string; tabIndex?: number; children: ComponentChildren }) => (
  <div class="centre" id="head"><section class={`panel ${pane}`} {...rest}>{children}</section></div>
);

export const EmptyCentre = ({ children }: { children: ComponentChildren }) => <Centre><p class="quiet hint">{children}</p></Centre>;
