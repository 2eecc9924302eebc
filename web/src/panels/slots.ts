// Where each head of the grid is drawn: slots that fill the panel, and what stands in a slot.

/** Room for the numbers at the left, and for those above. */
export const GUTTER = 22;
export const HEAD = 14;
const LABEL = 11;
const NUMBER = 13;
const BESIDE = 20;
/** From this width on a number can be read below a picture. */
const READABLE = 27;
/** Of a picture's side, where there is room for that. */
const SMALLEST = 18;
const FRAME = 2;
const GAP = 2;

export interface Slots {
  columns: number;
  rows: number;
  /** From one slot to the next. */
  across: number;
  down: number;
  /** A head's tile within its slot: frame, picture and number. */
  width: number;
  height: number;
  /** Above the tile, where the place does not say which head it is. */
  label: number;
  /** Below the picture, or at its right, whichever leaves the larger picture; 0 where there is no room. */
  number: number;
  beside: number;
  side: number;
  frame: number;
  total: number;
}

/**
 * Slots for so many columns and rows in a panel of this width and height.
 *
 * `height` 0: as high as it needs. `labelled`: each head is named above its tile.
 */
export function slots(columns: number, rows: number, width: number, height: number, labelled: boolean, pictures: boolean): Slots {
  const across = Math.max(12, Math.min(pictures ? 92 : 110, Math.floor((width - GUTTER) / columns)));
  const label = labelled ? LABEL : 0;
  const number = pictures ? (across >= READABLE ? NUMBER : 0) : 0;
  const around = label + number + 2 * FRAME + GAP;
  const square = across - GAP - 2 * FRAME;
  const room = height ? Math.floor((height - HEAD) / rows) : Infinity;
  const least = Math.min(SMALLEST, square) + around;
  // where the numbers below cost the last rows their place, they stand beside
  const tight = number && room < least && square - BESIDE >= SMALLEST ? least - number : least;
  const down = pictures
    ? Math.max(tight, Math.min(room, square + around))
    : label + Math.max(16, Math.min(room - label, 46));
  const under = Math.min(square, down - around);
  const next = number ? Math.min(square - BESIDE, down - around + number) : 0;
  const beside = next > under ? BESIDE : 0;
  const side = pictures ? Math.max(under, next) : 0;
  return {
    columns, rows, across, down, label, number: beside ? 0 : number, beside, side, frame: FRAME,
    width: across - GAP, height: down - label - GAP, total: HEAD + rows * down,
  };
}

export const corner = ({ columns, across, down }: Slots, place: number): [number, number] => [
  GUTTER + (place % columns) * across, HEAD + Math.floor(place / columns) * down,
];

/** A number in a slot: two places, or three digits of the largest of all, and no nought before the point. */
export function short(value: number, most?: number): string {
  const size = Math.abs(value);
  const places = most ? Math.max(1, Math.min(6, 2 - Math.floor(Math.log10(most)))) : 2;
  if (!Number.isFinite(value)) return "–";
  if (size < 0.5 * 10 ** -places) return "0";
  const text = value.toFixed(size < 1 ? places : size < 10 ? 1 : 0);
  return text.replace(/^(-?)0\./, "$1.").replace("-", "−");
}
