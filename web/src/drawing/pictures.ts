// The picture of the selected head: computed on demand and cached.
import { batch, computed, effect, signal } from "@preact/signals";
import { MOVED } from "./colour";
import { engine, Superseded, type Urgency } from "../trace/engine";
import type { View } from "../trace/cells";
import { size } from "../trace/parts";
import type { Drawn, Minus } from "../trace/desk";
import { everyNth, lost, tileOf, tries } from "../state/away";
import type { Slot } from "../state/comparing";
import { mean } from "../heads/several";
import { at, doc, failure, lookedRow, shown, type Doc } from "../state/store";
import type { Shown } from "../text/shown";
import * as state from "../state/state";
import { say } from "../words";

/** Rows and columns [..): top, bottom, left, right. */
export type Window = [number, number, number, number];

/** Numbers of one head on the screen. `full` has every cell; a long text has a pooled overview instead. */
export interface Picture {
  key: string;
  rows: number;
  columns: number;
  full: Float32Array | null;
  overview: { data: Float32Array; height: number; width: number };
  /** The end of the scale if the reader can't choose it: for differences and weights times |v W_O|. */
  ownMost: number | null;
  strongest: number;
  signed: boolean;
  /** n where only every nth row was computed; 1 where all were. */
  every: number;
}

export const FULL_CELLS = 1_200_000;
const OVERVIEW = 384;
/** Cells per request, so that the page can make other requests in between; and where a server computes them. */
const STRIP_CELLS = 600_000;
const SERVED_CELLS = 1 << 23;

const pictures = new Map<string, Picture>();

function remember(picture: Picture): Picture {
  pictures.delete(picture.key);
  pictures.set(picture.key, picture);
  let cells = 0;
  for (const cached of [...pictures.values()].reverse()) {
    cells += cached.full?.length ?? cached.overview.data.length;
    if (cells > 8 * FULL_CELLS) pictures.delete(cached.key);
  }
  return picture;
}

const largest = (data: Float32Array): number => {
  let most = 0;
  for (let n = 0; n < data.length; n++) if (Math.abs(data[n]) > most) most = Math.abs(data[n]);
  return most;
};

/** The value of the strongest colour and the thickest line. */
export const mostOf = (picture: Picture | null): number =>
  picture?.ownMost ?? (picture && state.reach.value === "head" ? picture.strongest : 1);

export interface Wanted {
  doc: Doc;
  /** B of a difference B - A. */
  minus: (Slot & { view: View }) | null;
  shown: Shown;
  layer: number;
  head: number;
  normed: boolean;
  /** The heads whose mean it is; null for the head alone. */
  mean: readonly [number, number][] | null;
}

/** The same for the worker. */
const drawnOf = ({ doc: { id }, layer, head, mean: heads }: Wanted): Drawn => ({ trace: id, layer, head, mean: heads });

/** The same with the tokens, and with B of a difference. */
export const askOf = (wanted: Wanted): Drawn & { view: View; normed: boolean; minus: Minus | null } => {
  const { minus: b, shown: { view }, normed } = wanted;
  return {
    ...drawnOf(wanted), view, normed,
    minus: b && { trace: b.doc.id, layer: b.layer, head: b.head, mean: null, view: b.view },
  };
};

/** Its rows and columns [..): top, bottom, left, right; of more than height x width cells, the value furthest from 0 stands for several. */
export const cellsOf = (wanted: Wanted, box: Window, height = box[1] - box[0], width = box[3] - box[2], lane?: string, urgency?: Urgency): Promise<Float32Array> =>
  engine.ask("tile", { ...askOf(wanted), box, height, width }, lane, urgency);

/** Its rows [from, to), without B of a difference. */
export const rowsOf = (wanted: Wanted, from: number, to = from + 1, lane?: string, urgency?: Urgency): Promise<Float32Array> =>
  engine.ask("rows", { ...drawnOf(wanted), view: wanted.shown.view, from, to, normed: wanted.normed }, lane, urgency);

/** One of its cells, where each row and column is one of the picture's. */
export const cellAt = async (wanted: Wanted, r: number, c: number): Promise<number> => (await cellsOf(wanted, [r, r + 1, c, c + 1]))[0];

export const wantedKey = (wanted: Wanted): string =>
  [wanted.doc.id, wanted.minus ? [wanted.minus.doc.id, wanted.minus.layer, wanted.minus.head].join(".") : "", wanted.layer, wanted.head, wanted.mean?.join(" "), wanted.normed, state.filter.value, state.special.value, state.merged.value].join("/");

/** A picture of these cells of it: `full` has them all, `overview` several in one. */
function made(key: string, { shown: { view }, minus, normed }: Wanted, whole: boolean, overview: Picture["overview"], every = 1): Picture {
  const strongest = largest(overview.data) || 1;
  return {
    key, rows: size(view.rows), columns: size(view.columns), full: whole ? overview.data : null, overview,
    ownMost: minus ? MOVED : normed ? strongest : null, strongest, signed: Boolean(minus), every,
  };
}

export async function picture(
  wanted: Wanted, lane?: string, grown?: (data: Float32Array, done: number, all: number) => void,
): Promise<Picture> {
  const key = wantedKey(wanted);
  const cached = pictures.get(key);
  if (cached) return remember(cached);
  const { minus, shown: { view } } = wanted;
  const [rows, columns] = [size(view.rows), size(view.columns)];
  const whole = rows * columns <= FULL_CELLS;
  const urgency = lane?.startsWith("ahead") ? "ahead" : "now";
  const [height, width] = whole ? [rows, columns] : [Math.min(rows, OVERVIEW), Math.min(columns, OVERVIEW)];
  let data: Float32Array;
  if (whole) {
    data = await (minus ? cellsOf(wanted, [0, rows, 0, columns], height, width, lane, urgency) : rowsOf(wanted, 0, rows, lane, urgency));
  } else {
    data = new Float32Array(height * width);
    const served = wanted.doc.info.away && !minus && !wanted.mean;
    const strip = Math.max(1, Math.floor((served ? SERVED_CELLS : STRIP_CELLS) / columns / (rows / height)));
    let [next, done] = [0, 0];
    const strips = async (): Promise<void> => {
      while (next < height) {
        const from = next;
        const to = Math.min(height, from + strip);
        next = to;
        // pooled row y covers the rows r with floor(r * height / rows) = y
        const first = Math.ceil((from * rows) / height);
        const last = Math.min(rows, Math.ceil((to * rows) / height));
        const part = await cellsOf(wanted, [first, last, 0, columns], to - from, width, served ? undefined : lane);
        data.set(part, from * width);
        done += to - from;
        grown?.(data, done, height);
      }
    };
    await Promise.all(served ? [strips(), strips()] : [strips()]);
  }
  return remember(made(key, wanted, whole, { data, height, width }));
}

/** A picture of every nth row, where the server has the arrays. */
async function sampled(wanted: Wanted): Promise<Picture> {
  const { doc, layer, head, normed, shown: { view } } = wanted;
  const [rows, columns] = [size(view.rows), size(view.columns)];
  const every = everyNth(wanted.shown);
  const [height, width] = [Math.min(Math.ceil(rows / every), OVERVIEW), Math.min(columns, OVERVIEW)];
  const data = await tileOf(doc, { trace: doc.id, layer, head, mean: null, minus: null, view, box: [0, rows, 0, columns], height, width, normed }, every, "now");
  return made(`sampled/${wantedKey(wanted)}`, wanted, false, { data, height, width }, every);
}

/** Placeholder for a long text's picture: the thumbnail, enlarged. */
function coarse(wanted: Wanted): Picture | null {
  const { thumbs, heads, awaited, keys } = wanted.doc.info;
  const { rows, columns } = wanted.shown.view;
  const n = wanted.layer * heads + wanted.head;
  if (!thumbs || wanted.mean || awaited.has(n) || size(rows) * size(columns) <= FULL_CELLS || columns.members.length !== keys.tokens.length) return null;
  const cells = thumbs.rows * thumbs.columns;
  const data = Float32Array.from(thumbs.data.subarray(n * cells, (n + 1) * cells), (byte) => (byte / 255) ** 2);
  return made(`coarse/${wantedKey(wanted)}`, { ...wanted, normed: false }, false, { data, height: thumbs.rows, width: thumbs.columns });
}

export const current = signal<Picture | null>(null);
export const computing = signal(false);
export const progress = signal(0);
export const wanted = computed<Wanted | null>(() =>
  doc.value && shown.value
    ? {
        doc: doc.value, minus: null, shown: shown.value, layer: at.value.layer, head: at.value.head,
        normed: state.normed.value && doc.value.info.hasNorms, mean: mean.value,
      }
    : null,
);

let turn = 0;

export function followSelection(): void {
  let last = "";
  effect(() => {
    const now = wanted.value;
    if (!now) return;
    // thumbnails that arrive make another wanted of the same head
    const key = `${wantedKey(now)} ${tries.value}`;
    if (key === last) return;
    last = key;
    const ticket = ++turn;
    const ready = pictures.has(wantedKey(now));
    const rough = ready ? null : coarse(now);
    if (rough) current.value = rough;
    computing.value = true;
    progress.value = 0;
    const sample = async (): Promise<void> => {
      if (ready || now.mean || !now.doc.info.away || everyNth(now.shown) < 2) return;
      const answer = await sampled(now);
      if (ticket !== turn) throw new Superseded("another head");
      current.value = answer;
    };
    sample().then(() => picture(now, "current", (_, done, all) => {
      if (ticket === turn) progress.value = done / all;
      else throw new Superseded("another head");
    })).then(
      (answer) => {
        if (ticket !== turn) return;
        batch(() => {
          current.value = answer;
          computing.value = false;
        });
        prefetch(now);
      },
      (error: Error) => {
        if (!(error instanceof Superseded) && ticket === turn && !lost.peek()) failure.value = say("head_refused", { why: error.message });
      },
    );
  });
}

/** The neighbours that an arrow key would move to. */
function prefetch(now: Wanted): void {
  const { layers, heads } = now.doc.info;
  if (now.mean || size(now.shown.view.rows) * size(now.shown.view.columns) > FULL_CELLS / 4) return;
  for (const [down, right] of [[0, 1], [1, 0], [0, -1], [-1, 0]] as const) {
    const next = { ...now, layer: now.layer + down, head: now.head + right };
    if (next.layer >= 0 && next.layer < layers.length && next.head >= 0 && next.head < heads && !pictures.has(wantedKey(next))) {
      picture(next, `ahead${down}${right}`).catch(() => undefined);
    }
  }
}

/** Row r of a picture that has all its cells. */
export const rowIn = ({ full, columns }: Picture, r: number): Float32Array => full!.subarray(r * columns, (r + 1) * columns);

/** One row of the picture: available for short texts, requested for long ones. */
export const rowNumbers = signal<{ row: number; data: Float32Array } | null>(null);
/** Of the row that is looked at. */
export const lookedNumbers = computed(() => (rowNumbers.value?.row === lookedRow.value ? rowNumbers.value!.data : null));

export function followRow(): void {
  effect(() => {
    const [now, i, now_picture] = [wanted.value, lookedRow.value, current.value];
    if (!now || i === null || !now_picture || i >= now_picture.rows) {
      rowNumbers.value = null;
      return;
    }
    // a row of a text with other words is none of this one
    if (rowNumbers.peek()?.data.length !== now.shown.columns.length) rowNumbers.value = null;
    const key = wantedKey(now);
    if (now_picture.full && now_picture.key === key) {
      rowNumbers.value = { row: i, data: rowIn(now_picture, i) };
      return;
    }
    if (now_picture.full) return;
    const put = (row: typeof rowNumbers.value): void => {
      if (lookedRow.peek() === i && wantedKey(wanted.peek()!) === key) rowNumbers.value = row;
    };
    // those of another head are none of this one
    rowsOf(now, i, i + 1, "row").then((data) => put({ row: i, data }), () => put(null));
  });
}
