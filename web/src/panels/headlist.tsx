// A few heads in order with their numbers, on one line; a click looks at one.
import { pick } from "../heads/several";
import { walked } from "../heads/ranking";
import * as state from "../state/state";
import { at, headLabel } from "../state/store";
import type { TraceInfo } from "../trace/trace";
import { number } from "../words";
import { short } from "./slots";

interface Props {
  info: TraceInfo;
  name: string;
  order: number[];
  numbers: Float32Array | undefined;
  test: string;
}

export function HeadList({ info, name, order, numbers, test }: Props) {
  return (
    <div class="headlist"><span class="quiet small">{name}</span>
      <ol data-test={test}>
        {numbers && order.map((n) => (
          <li key={n}>
            <button aria-pressed={n === at.value.n} data-head={headLabel(info, n)} data-number={numbers[n]} title={number(numbers[n])}
              onClick={(event) => { pick(event, n); if (test === "ranks") walked.value++; }} onPointerEnter={() => { state.hoverHead.value = n; }} onPointerLeave={() => { state.hoverHead.value = null; }}>
              <b>{headLabel(info, n)}</b> {Math.abs(numbers[n]) < 10 ? short(numbers[n]) : number(numbers[n], 1)}
            </button>
          </li>
        ))}
      </ol>
    </div>
  );
}
