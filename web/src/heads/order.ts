// Orders of heads, n = layer * heads + head: by place, by number, and the next of an order.

/** Heads that have a number, the highest first or the lowest first, those of equal numbers by place. */
export function byNumber(numbers: ArrayLike<number>, highest: boolean): number[] {
  const sign = highest ? -1 : 1;
  return Array.from({ length: numbers.length }, (_, n) => n)
    .filter((n) => Number.isFinite(numbers[n]))
    .sort((a, b) => sign * (numbers[a] - numbers[b]) || a - b);
}

/** The place after, or before, in a ranking; a walk that has not begun begins at the first, or after it where that is looked at. */
export function nextPlace(order: readonly number[], current: number, walking: boolean, by: 1 | -1): number | null {
  const here = order.indexOf(current);
  if (!order.length) return null;
  if (!walking && by > 0) return order[here === 0 ? Math.min(1, order.length - 1) : 0];
  return order[Math.max(0, Math.min(order.length - 1, (here < 0 ? 0 : here) + by))];
}
