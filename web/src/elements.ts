// Components of a page are drawn again where their properties change, or a signal that they read; what they keep meanwhile.
import { Component, Fragment, options, type ComponentChildren, type FunctionComponent, type RefObject } from "preact";
import { computed, effect, signal, type ReadonlySignal, type Signal } from "@preact/signals-core";

export { render } from "preact";

type Props = Record<string, unknown>;
type Stop = (() => void) | void;

/** A value or an effect of a component, and what it follows from. */
interface Kept { inputs?: unknown[] | undefined; value?: unknown; stop?: Stop }

/** The component that is being drawn, and what it has asked for so far. */
let drawing: Drawn;
let place = 0;

abstract class Drawn extends Component<Props> {
  readonly kept: Kept[] = [];
  /** Effects for when the elements are there. */
  readonly due: (() => void)[] = [];
  private watch: Stop = undefined;

  abstract readonly draw: FunctionComponent<Props>;

  override shouldComponentUpdate(next: Props): boolean {
    return Object.keys({ ...this.props, ...next }).some((name) => next[name] !== this.props[name]);
  }

  override componentDidMount(): void {
    this.due.splice(0).forEach((act) => act());
  }

  override componentDidUpdate(): void {
    this.componentDidMount();
  }

  override componentWillUnmount(): void {
    this.watch?.();
    this.kept.forEach(({ stop }) => stop?.());
  }

  override render(props: Props): ComponentChildren {
    let [drawn, isDrawn]: [ComponentChildren, boolean] = [null, false];
    this.watch?.();
    this.watch = effect(() => {
      if (isDrawn) return this.forceUpdate();
      [drawing, place] = [this, 0];
      drawn = this.draw(props);
      isDrawn = true;
    });
    return drawn;
  }
}

const components = new WeakMap<object, new () => Drawn>();

options.vnode = (node) => {
  const { type } = node;
  if (typeof type !== "function" || type === Fragment || type.prototype instanceof Component) return;
  if (!components.has(type)) components.set(type, class extends Drawn { readonly draw = type as FunctionComponent<Props>; });
  node.type = components.get(type) as typeof type;
};

/** The next of what the component keeps, and whether an input of it has changed. */
function next(inputs: unknown[] | undefined): [Kept, boolean] {
  const kept = (drawing.kept[place++] ??= {});
  const { inputs: before } = kept;
  kept.inputs = inputs;
  return [kept, !inputs || !before || inputs.some((input, n) => input !== before[n])];
}

/** A value that is made anew where an input changes. */
export function useMemo<T>(make: () => T, inputs: unknown[]): T {
  const [kept, isNew] = next(inputs);
  if (isNew) kept.value = make();
  return kept.value as T;
}

/** Act once the elements are there, and again where an input has changed; what it returns undoes it. */
export function useEffect(act: () => Stop, inputs?: unknown[]): void {
  const [kept, isNew] = next(inputs);
  if (isNew) drawing.due.push(() => {
    kept.stop?.();
    kept.stop = act();
  });
}

/** A place for an element, or for what drawing does not depend on. */
export function useRef<T>(first: T): { current: T };
export function useRef<T>(first: null): RefObject<T>;
export function useRef<T>(first: T): { current: T } {
  return useMemo(() => ({ current: first }), []);
}

/** A component's own signal. */
export const useSignal = <T,>(first: T): Signal<T> => useMemo(() => signal(first), []);

/** A component's own value that follows from signals. */
export const useComputed = <T,>(compute: () => T): ReadonlySignal<T> => useMemo(() => computed(compute), []);
