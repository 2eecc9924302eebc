// The strongest cells of a row: as many as hold a share of its mass, or a given number.

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
export function largestPlaces(numbers: ArrayLike<number>, most: number, length = numbers.length, from = 0, stride = 1): number[] {
  const best: number[] = [];
  const at = (n: number): number => numbers[from + n * stride];
  for (let n = 0; n < length; n++) {
    if (best.length === most && !(at(n) > at(best[most - 1]))) continue;
    let place = Math.min(best.length, most - 1);
    while (place > 0 && at(n) > at(best[place - 1])) {
      best[place] = best[place - 1];
      place--;
    }
    best[place] = n;
  }
  return best;
}
