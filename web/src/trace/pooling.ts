// Pooling of many cells into one: the value furthest from 0 wins, and so does NaN, so that a single bright cell stays visible.

/** For each of `across` columns, the index of its pooled column, of which there are `width`. */
export function columnsOf(across: number, width: number): Int32Array {
  return Int32Array.from({ length: across }, (_, c) => Math.floor((c * width) / across));
}

/** Pool the row of numbers from values[from] on into the row that begins at out[base]. */
export function poolRow(values: Float32Array, from: number, columnOf: Int32Array, out: Float32Array, base: number): void {
  for (let c = 0; c < columnOf.length; c++) {
    const value = values[from + c];
    const at = base + columnOf[c];
    if (Math.abs(value) > Math.abs(out[at]) || Number.isNaN(value)) out[at] = value;
  }
}
