// The strongest cells of a row: as many as hold a share of its mass, or a given number.
import { byNumber } from "../heads/order";

/** The fewest keys, strongest first, that hold this share of a row's mass. */
export function strongestKeys(row: ArrayLike<number>, mass: number): number[] {
  const sorted = Float32Array.from(row).sort();
  let total = 0;
  for (let j = 0; j < row.length; j++) total += row[j];
  const wanted = total * mass;
  let sum = 0;
  let n = row.length;
  while (n > 0 && sorted[n - 1] > 0 && (n === row.length || sum < wanted - 1e-7)) sum += sorted[--n];
  const count = row.length - n;
  if (!count) return [];
  const least = sorted[n];
  const order: number[] = [];
  for (let j = 0; j < row.length; j++) if (Math.fround(row[j]) > least) order.push(j);
  for (let j = 0; j < row.length && order.length < count; j++) if (Math.fround(row[j]) === least) order.push(j);
  return order.sort((a, b) => row[b] - row[a] || a - b);
}

/** Positions of the `most` largest numbers, largest first. */
export const largestPlaces = (numbers: ArrayLike<number>, most: number): number[] => byNumber(numbers, true).slice(0, most);
