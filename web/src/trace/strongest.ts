// The strongest of a row: as many as hold a share of it, or so many.

/** The fewest keys, strongest first, that hold this share of a row's mass. */
export function strongestKeys(row: ArrayLike<number>, mass: number): number[] {
  const sorted = Float32Array.from(row).sort();
  let total = 0;
  for (let j = 0; j < row.length; j++) total += row[j];
  const wanted = total * mass;
  let held = 0;
  let n = row.length;
  while (n > 0 && sorted[n - 1] > 0 && (n === row.length || held < wanted - 1e-7)) held += sorted[--n];
  const count = row.length - n;
  if (!count) return [];
  const least = sorted[n];
  const order: number[] = [];
  for (let j = 0; j < row.length; j++) if (Math.fround(row[j]) > least) order.push(j);
  for (let j = 0; j < row.length && order.length < count; j++) if (Math.fround(row[j]) === least) order.push(j);
  return order.sort((a, b) => row[b] - row[a] || a - b);
}

/** The places of the `most` largest numbers, largest first. */
export function largestPlaces(numbers: ArrayLike<number>, most: number, length = numbers.length, from = 0, stride = 1): number[] {
  const found: number[] = [];
  const at = (n: number): number => numbers[from + n * stride];
  for (let n = 0; n < length; n++) {
    if (found.length === most && !(at(n) > at(found[most - 1]))) continue;
    let place = Math.min(found.length, most - 1);
    while (place > 0 && at(n) > at(found[place - 1])) {
      found[place] = found[place - 1];
      place--;
    }
    found[place] = n;
  }
  return found;
}
