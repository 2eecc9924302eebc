// Pooling of many cells into one: the value furthest from 0 wins, and so does NaN, so that a single bright cell stays visible.

const BLOCK = 4;

/**
 * Rows and columns [..), pooled to at most height x width, a few rows at a time: `rowsOf` gives their numbers from the left column on,
 * the next row `stride` numbers further.
 */
export function pooled(
  [top, bottom, left, right]: readonly [number, number, number, number], height: number, width: number,
  rowsOf: (first: number, last: number) => Float32Array, stride = right - left,
): { data: Float32Array; height: number; width: number } {
  height = Math.min(height, bottom - top);
  width = Math.min(width, right - left);
  const data = new Float32Array(height * width);
  const columnOf = Int32Array.from({ length: right - left }, (_, c) => Math.floor((c * width) / (right - left)));
  for (let first = top; first < bottom; first += BLOCK) {
    const last = Math.min(bottom, first + BLOCK);
    const values = rowsOf(first, last);
    for (let r = first; r < last; r++) {
      const base = Math.floor(((r - top) * height) / (bottom - top)) * width;
      for (let c = 0; c < columnOf.length; c++) {
        const value = values[(r - first) * stride + c];
        const at = base + columnOf[c];
        if (Math.abs(value) > Math.abs(data[at]) || Number.isNaN(value)) data[at] = value;
      }
    }
  }
  return { data, height, width };
}
