// B - A of two heads whose rows and columns stand for the same: of one text, of two, of two models.
import { size, viewRows, type Heads, type View } from "./cells";
import { pooled } from "./pooling";

/** Places in A and in B that stand for the same, in order; -1 where a side has none. */
export interface Aligned {
  a: Int32Array;
  b: Int32Array;
}

/** One side of a comparison. */
export interface Side {
  heads: Heads;
  view: View;
  normed: boolean;
}

export interface Difference {
  data: Float32Array;
  /**
   * Half the summed differences of a row, averaged over rows: 0 if equal, 1 if nothing is in common; NaN without rows that have keys.
   * What a row lacks of 1, a sink's share or that of hidden keys, is one more place.
   */
  moved: number;
}

/** B - A at rows and columns [..), pooled to height x width by the value furthest from 0. */
export function difference(a: Side, b: Side, box: readonly [number, number, number, number], height: number, width: number): Difference {
  const across = size(a.view.columns);
  let [sum, count] = [0, 0];
  const { data } = pooled(box, height, width, (first, last) => {
    const [x, y] = [a, b].map(({ heads, view, normed }) => viewRows(heads, view, first, last, 0, across, normed));
    for (let base = 0; base < x.length; base += across) {
      let [one, other, apart] = [0, 0, 0];
      for (let n = base; n < base + across; n++) {
        one += x[n];
        other += y[n];
        x[n] = y[n] - x[n];
        apart += Math.abs(x[n]);
      }
      if (one > 0 && other > 0) {
        sum += (apart + Math.abs(one - other)) / 2;
        count++;
      }
    }
    return x.subarray(box[2]);
  }, across);
  return { data, moved: sum / count };
}
