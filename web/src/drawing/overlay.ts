// The rows of heads whose lines lie over each other: of every query where the text is short, else of the one looked at.
import { effect, signal } from "@preact/signals";
import { FULL_CELLS, picture, rowIn, rowsOf, wanted, wantedKey } from "./pictures";
import { overlaid } from "../heads/several";
import { headOf, lookedRow } from "../state/store";

/** A head's weights of row r; null where they are not there. */
export type RowAt = (r: number) => Float32Array | null;

/** In the order of the heads; empty until all are there. */
export const overlaidRows = signal<RowAt[]>([]);

export function followOverlay(): void {
  let turn = 0;
  effect(() => {
    const now = wanted.value;
    const heads = overlaid.value;
    const ticket = ++turn;
    if (!now || !heads.length) {
      overlaidRows.value = [];
      return;
    }
    const [{ length: rows }, { length: columns }] = [now.shown.rows, now.shown.columns];
    const whole = rows * columns <= FULL_CELLS;
    const looked = whole ? null : lookedRow.value;
    const rowsAt = async (n: number): Promise<RowAt> => {
      const one = { ...now, ...headOf(now.doc.info, n) };
      if (whole) {
        const found = await picture(one, `overlay ${wantedKey(one)}`);
        return (r) => rowIn(found, r);
      }
      if (looked === null) return () => null;
      const data = await rowsOf(one, looked, looked + 1, `overlay ${n}`);
      return (r) => (r === looked ? data : null);
    };
    Promise.all(heads.map(rowsAt)).catch(() => []).then((found) => { if (ticket === turn) overlaidRows.value = found; });
  });
}
