// B - A of two heads whose tokens are aligned: of one text, of two, of two models.
import { size, viewRows, type Heads, type View } from "./cells";
import { columnsOf, poolRow } from "./pooling";

/** Places in A and in B that stand for the same, in order; -1 where a side has none. */
export interface Aligned {
  a: Int32Array;
  b: Int32Array;
}

/** The rows and columns of two pictures. */
export interface Pairs {
  rows: Aligned;
  columns: Aligned;
}

/** One side of a comparison. */
export interface Side {
  heads: Heads;
  view: View;
  normed: boolean;
}

/** These rows of a picture, neighbours together; a gap is left empty. */
function rowsAt({ heads, view, normed }: Side, places: Int32Array): Float32Array {
  const columns = size(view.columns);
  const out = new Float32Array(places.length * columns);
  for (let n = 0; n < places.length; ) {
    let end = n + 1;
    while (end < places.length && places[n] >= 0 && places[end] === places[n] + end - n) end++;
    if (places[n] >= 0) out.set(viewRows(heads, view, places[n], places[n] + end - n, 0, columns, normed), n * columns);
    n = end;
  }
  return out;
}

const BLOCK = 4;

/** B - A at the aligned rows and columns [..), 0 at gaps, pooled to height x width by the value furthest from 0. */
export function difference(
  a: Side, b: Side, { rows, columns }: Pairs, box: [number, number, number, number], height: number, width: number,
): Float32Array {
  const [top, bottom, left, right] = box;
  height = Math.min(height, bottom - top);
  width = Math.min(width, right - left);
  const out = new Float32Array(height * width);
  const columnOf = columnsOf(right - left, width);
  const [wideA, wideB] = [size(a.view.columns), size(b.view.columns)];
  const line = new Float32Array(right - left);
  for (let first = top; first < bottom; first += BLOCK) {
    const last = Math.min(bottom, first + BLOCK);
    const [x, y] = [rowsAt(a, rows.a.subarray(first, last)), rowsAt(b, rows.b.subarray(first, last))];
    for (let r = first; r < last; r++) {
      if (rows.a[r] < 0 || rows.b[r] < 0) continue;
      for (let c = left; c < right; c++) {
        const [i, j] = [columns.a[c], columns.b[c]];
        line[c - left] = i < 0 || j < 0 ? 0 : y[(r - first) * wideB + j] - x[(r - first) * wideA + i];
      }
      poolRow(line, 0, columnOf, out, Math.floor(((r - top) * height) / (bottom - top)) * width);
    }
  }
  return out;
}
