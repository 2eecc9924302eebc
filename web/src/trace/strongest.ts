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

/** Positions of the `most` largest numbers, largest first, of equal ones the first; the rest is never put in order. */
export function largestPlaces(numbers: ArrayLike<number>, most: number): number[] {
  const places: number[] = [];
  for (let n = 0; n < numbers.length; n++) {
    if (!Number.isFinite(numbers[n])) continue;
    places.splice(places.findLastIndex((place) => numbers[place] >= numbers[n]) + 1, 0, n);
    if (places.length > most) places.pop();
  }
  return places;
}
