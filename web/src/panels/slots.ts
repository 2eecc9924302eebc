// Where each head of the grid is drawn: slots that fill the panel, and what stands in a slot.

/** Room for the numbers at the left, and for those above. */
export const GUTTER = 20;
export const HEAD = 16;
const LABEL = 16;
const NUMBER = 15;
/** Below a picture: a line as long as the number is large; and the room from which on it is no part of the picture. */
const METER = 3;
const METERED = 25;
/** Of a picture: the least side that says more than its number's colour, and the largest with its number at the right. */
const SMALLEST = 15;
const LARGEST = 32;
/** Right of a picture: a gap and the number. */
const ASIDE = 24;
/** Width from which on a number can be read below a picture; width and height of a cell that has room for one. */
const READABLE = 27;
const WIDE = 20;
const HIGH = 14;
/** A row that can be told from the next. A grid with lower ones scrolls; with ever so many heads a layer stands in one row. */
const LEAST = 8;
const GAP = 4;
/** The most that rows of pictures are moved apart where there is room. */
const SPREAD = 12;
/** Cells that stand close lie side by side. */
const CLOSE = 28;

/** A picture with its number under or beside it; or no picture: a cell in the number's colour. */
type Form = "under" | "beside" | "value";

export interface Slots {
  form: Form;
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
  /** True if a cell has its head's name instead of its number: there is no room for both. */
  named: boolean;
  /** True if a number can be read. */
  written: boolean;
  /** Below the picture; 0 where there is no room. */
  meter: number;
  number: number;
  side: number;
  total: number;
}

/**
 * Slots for so many columns and rows in a panel of this width and height: all of them are seen, in the form with the largest picture.
 *
 * `height` 0: as high as it needs. `labelled`: each head is named. `signed`: numbers with a sign, which stand under a picture or in a cell.
 */
export function slots(columns: number, rows: number, width: number, height: number, labelled: boolean, pictures: boolean, signed = false): Slots {
  const across = Math.min(pictures ? 96 : 110, (width - GUTTER) / columns);
  const room = height ? Math.max(LEAST, Math.floor((height - HEAD) / rows)) : Infinity;
  const label = labelled ? LABEL : 0;
  const number = across >= READABLE ? NUMBER : 0;
  const metered = room - label >= METERED ? METER : 0;
  const under = Math.floor(Math.min(across - GAP, room - label - METER - number - GAP));
  const beside = Math.floor(Math.min(LARGEST, across - ASIDE, room - label - (metered ? metered + 3 : 2)));
  const fits = { columns, rows, across, written: true, named: false };
  if (pictures && number && under >= SMALLEST && (under >= beside || signed)) {
    const least = label + under + METER + number + GAP;
    const down = Math.min(room, least + (height ? SPREAD : 0));
    return { ...fits, form: "under", down, width: across - GAP, height: least - label - GAP, label, meter: METER, number, side: under, total: HEAD + rows * down };
  }
  if (pictures && beside >= SMALLEST && !signed) {
    return { ...fits, form: "beside", down: room, width: across - 2, height: room - label - 2, label, meter: metered, number: 0, side: beside, total: HEAD + rows * room };
  }
  const down = Math.min(room, label + 46);
  const named = labelled && down < LABEL + HIGH;
  const above = named ? 0 : label;
  const gap = Math.min(down - above, across) < CLOSE ? 1 : GAP;
  return {
    ...fits, form: "value", down, width: across - gap, height: down - above - gap, label: above, named, meter: 0, number: 0, side: 0,
    written: across >= WIDE && down - above >= HIGH, total: HEAD + rows * down,
  };
}

export const corner = ({ columns, across, down }: Slots, place: number): [number, number] => [
  GUTTER + Math.round((place % columns) * across), HEAD + Math.floor(place / columns) * down,
];

/** The end of a scale: a whole number as such. */
export const end = (value: number): string => (Number.isInteger(value) ? String(value).replace("-", "−") : short(value, Math.abs(value)).replace(/(\.\d*[1-9])0+$|\.0+$/, "$1"));

/** A number in a slot: two places, or three digits of the largest of all, and no nought before the point. */
export function short(value: number, most?: number): string {
  const size = Math.abs(value);
  const places = most ? Math.max(1, Math.min(6, 2 - Math.floor(Math.log10(most)))) : 2;
  if (!Number.isFinite(value)) return "–";
  if (size < 0.5 * 10 ** -places) return "0";
  const text = value.toFixed(size < 1 - 0.5 * 10 ** -places ? places : size < 9.95 ? 1 : 0);
  return text.replace(/^(-?)0\./, "$1.").replace("-", "−");
}

/** The same of a change, with its sign. */
export const change = (value: number, most?: number): string => short(value, most).replace(/^(?=\.?[1-9]|\.0)/, value > 0 ? "+" : "");
