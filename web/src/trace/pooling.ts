// Many cells in one: what lies furthest from 0 stands for all, so that a single bright cell doesn't vanish. NaN neither.

/** For each of `across` columns, which of `width` pooled columns it goes to. */
export function columnsOf(across: number, width: number): Int32Array {
  return Int32Array.from({ length: across }, (_, c) => Math.floor((c * width) / across));
}

/** One row of numbers, from values[from] on, into the pooled row that begins at out[base]. */
export function poolRow(values: Float32Array, from: number, columnOf: Int32Array, out: Float32Array, base: number): void {
  for (let c = 0; c < columnOf.length; c++) {
    const value = values[from + c];
    const at = base + columnOf[c];
    if (Math.abs(value) > Math.abs(out[at]) || Number.isNaN(value)) out[at] = value;
  }
}
