// A button with an icon only; its tooltip and its label for screen readers say what it does.
import type { JSX } from "preact";

export const Sign = ({ says, ...rest }: { says: string } & JSX.IntrinsicElements["button"]) => <button title={says} aria-label={says} {...rest} />;
