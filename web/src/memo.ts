// A component that renders again only if its properties have changed.
import { Component, type ComponentChild, type FunctionComponent } from "preact";

export function memo<P extends object>(draw: (props: P) => ComponentChild): FunctionComponent<P> {
  class Kept extends Component<P> {
    override shouldComponentUpdate(next: Readonly<P>): boolean {
      const names = new Set([...Object.keys(next), ...Object.keys(this.props)]) as Set<keyof P>;
      return [...names].some((name) => next[name] !== this.props[name]);
    }

    override render(): ComponentChild {
      return draw(this.props);
    }
  }
  return Kept as unknown as FunctionComponent<P>;
}
