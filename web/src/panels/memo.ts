// A component that renders again only if its properties have changed; it reads no signals.
import type { ComponentChild, FunctionComponent } from "preact";
import { useMemo } from "preact/hooks";

export const memo = <P extends object>(draw: (props: P) => ComponentChild): FunctionComponent<P> =>
  (props) => useMemo(() => draw(props), Object.values(props)) as ReturnType<FunctionComponent<P>>;
