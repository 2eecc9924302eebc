// A button that shows a sign only: what it does is said in its tooltip and to screen readers.
import type { JSX } from "preact";

export const Sign = ({ says, ...rest }: { says: string } & JSX.IntrinsicElements["button"]) => <button title={says} aria-label={says} {...rest} />;
