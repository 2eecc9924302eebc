// Where each head of the grid is drawn: slots that fill the panel, and what stands in a slot.

/** Room for the numbers at the left, and for those above. */
export const GUTTER = 20;
export const HEAD = 16;
const LABEL = 16;
const NUMBER = 15;
/** Below a picture: a line as long as the number is large. */
export const METER = 3;
/** From this width on a number can be read below a picture. */
const READABLE = 27;
/** Of a picture's side, where there is room for that. */
const SMALLEST = 18;
const GAP = 4;

export interface Slots {
  columns: number;
  rows: number;
  /** From one slot to the next. */
  across: number;
  down: number;
  /** A head's tile within its slot: picture, meter and number. */
  width: number;
  height: number;
  /** Above the tile, where the place does not say which head it is. */
  label: number;
  /** Below the picture; 0 where there is no room. */
  meter: number;
  number: number;
  side: number;
  total: number;
}

/**
 * Slots for so many columns and rows in a panel of this width and height.
 *
 * `height` 0: as high as it needs. `labelled`: each head is named above its tile.
 */
export function slots(columns: number, rows: number, width: number, height: number, labelled: boolean, pictures: boolean): Slots {
  const across = Math.max(12, Math.min(pictures ? 96 : 110, (width - GUTTER) / columns));
  const label = labelled ? LABEL : 0;
  const meter = pictures ? METER : 0;
  const number = pictures && across >= READABLE ? NUMBER : 0;
  const square = Math.floor(across - GAP);
  const around = label + meter + number + GAP;
  const room = height ? Math.floor((height - HEAD) / rows) : Infinity;
  const down = pictures
    ? Math.max(Math.min(SMALLEST, square) + around, Math.min(room, square + around))
    : label + Math.max(18, Math.min(room - label, 46));
  return {
    columns, rows, across, down, label, meter, number, side: pictures ? Math.min(square, down - around) : 0,
    width: across - GAP, height: down - label - GAP, total: HEAD + rows * down,
  };
}

export const corner = ({ columns, across, down }: Slots, place: number): [number, number] => [
  GUTTER + Math.round((place % columns) * across), HEAD + Math.floor(place / columns) * down,
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
