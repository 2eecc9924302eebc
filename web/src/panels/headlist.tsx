// A few heads in order, each with a bar and its number; a click looks at one.
import { layerColour } from "../colour";
import { pick } from "../several";
import * as state from "../state";
import { at, headLabel } from "../store";
import type { TraceInfo } from "../trace/trace";
import { number } from "../words";
import { Fill } from "./bar";

interface Props {
  info: TraceInfo;
  order: number[];
  /** Always as many lines, so that nothing moves. */
  lines: number;
  numbers: Float32Array | undefined;
  share: (value: number) => number;
  test: string;
}

export function HeadList({ info, order, lines, numbers, share, test }: Props) {
  const chosen = at.value.layer * info.heads + at.value.head;
  return (
    <ol class="headlist" data-test={test}>
      {Array.from({ length: Math.min(lines, info.layers.length * info.heads) }, (_, place) => {
        const n = order[place];
        if (n === undefined || !numbers) return <li key={place}>&nbsp;</li>;
        const [layer, head] = [Math.floor(n / info.heads), n % info.heads];
        return (
          <li key={place}>
            <button class={n === chosen ? "here" : ""} aria-pressed={n === chosen} data-head={headLabel(info, layer, head)} data-number={numbers[n]}
              onClick={(event) => pick(event, n)} onPointerEnter={() => { state.hoverHead.value = [layer, head]; }} onPointerLeave={() => { state.hoverHead.value = null; }}>
              <i style={{ background: layerColour(layer, info.layers.length, state.dark.value) }} /><b>{headLabel(info, layer, head)}</b>
              <span class="bar"><Fill share={share(numbers[n])} /></span><b class="figure">{number(numbers[n])}</b>
            </button>
          </li>
        );
      })}
    </ol>
  );
}
