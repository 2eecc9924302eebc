// The open traces, and the picture of the head that is looked at.
import { batch, computed, effect, signal } from "@preact/signals";
import { engine, Superseded } from "./trace/engine";
import { size } from "./trace/arithmetic";
import type { TraceInfo } from "./trace/trace";
import { makeShown, type Shown } from "./shown";
import * as state from "./state";

export interface Doc {
  id: number;
  name: string;
  info: TraceInfo;
  /** The server's name for it; null where the page has only the file. */
  remote: string | null;
}

/** Numbers of one head as they are shown. `full` holds every cell; a long text has a pooled overview instead. */
export interface Picture {
  key: string;
  rows: number;
  columns: number;
  full: Float32Array | null;
  overview: { data: Float32Array; height: number; width: number };
  /** The end of the scale where it is not for the reader to choose: differences, weighted weights. */
  ownMost: number | null;
  strongest: number;
  signed: boolean;
  /** Of every row, in nats; and the column that takes most, with its mean share. Only where every cell is at hand. */
  entropies: Float32Array | null;
  most: { column: number; share: number } | null;
}

export const FULL_CELLS = 1_200_000;
const OVERVIEW = 384;
/** Cells that are computed before the page may ask something else. */
const STRIP_CELLS = 600_000;

export const docs = signal<Doc[]>([]);
export const failure = signal<string | null>(null);
export const doc = computed<Doc | null>(() => docs.value[Math.min(state.trace.value, docs.value.length - 1)] ?? null);
export const otherDoc = computed<Doc | null>(() => {
  const at = state.other.value;
  return at === null ? null : (docs.value[at] ?? null);
});
export const at = computed(() => {
  const info = doc.value?.info;
  return {
    layer: Math.min(state.layer.value, (info?.layers.length ?? 1) - 1),
    head: Math.min(state.head.value, (info?.heads ?? 1) - 1),
  };
});
export const shown = computed<Shown | null>(() => {
  const info = doc.value?.info;
  return info ? makeShown(info, state.filter.value, state.special.value, state.merged.value) : null;
});
export const otherShown = computed<Shown | null>(() => {
  const info = otherDoc.value?.info;
  return info ? makeShown(info, state.filter.value, state.special.value, state.merged.value) : null;
});
/** Why two traces can't be subtracted cell by cell; null where they can. */
export type Apart = { word: "compare_lengths" | "compare_shapes" | "compare_filtered"; a: string; b: string } | null;

const same = (a: unknown, b: unknown): boolean => JSON.stringify(a) === JSON.stringify(b);
const rowsAndColumns = (info: TraceInfo): string =>
  info.keys === info.queries ? String(info.queries.tokens.length) : `${info.queries.tokens.length} x ${info.keys.tokens.length}`;

/** Heads of two traces are ranked by change where both have the same tokens' number, layers and heads. */
export function apart(a: TraceInfo, b: TraceInfo): Apart {
  if (!same(a.layerNumbers, b.layerNumbers) || !same(a.headNumbers, b.headNumbers)) {
    return { word: "compare_shapes", a: `${a.layers.length} x ${a.heads}`, b: `${b.layers.length} x ${b.heads}` };
  }
  if (a.queries.tokens.length !== b.queries.tokens.length || a.keys.tokens.length !== b.keys.tokens.length) {
    return { word: "compare_lengths", a: rowsAndColumns(a), b: rowsAndColumns(b) };
  }
  return null;
}

export const separated = computed<Apart>(() => {
  const [a, b] = [doc.value?.info, otherDoc.value?.info];
  if (!a || !b) return null;
  const why = apart(a, b);
  if (why) return why;
  const [mine, theirs] = [shown.value!, otherShown.value!];
  return same(mine.rows.map((one) => one.tokens), theirs.rows.map((one) => one.tokens)) &&
    same(mine.columns.map((one) => one.tokens), theirs.columns.map((one) => one.tokens))
    ? null
    : { word: "compare_filtered", a: `${mine.rows.length} x ${mine.columns.length}`, b: `${theirs.rows.length} x ${theirs.columns.length}` };
});

/** Where another trace holds the head with these numbers; null where it has none. */
export function placeOf(info: TraceInfo, layerNumber: number, headNumber: number): { layer: number; head: number } | null {
  const layer = info.layerNumbers.indexOf(layerNumber);
  const head = layer < 0 ? -1 : info.headNumbers[layer].indexOf(headNumber);
  return head < 0 ? null : { layer, head };
}

export const row = computed<number | null>(() => {
  const found = state.query.value === null ? -1 : (shown.value?.rowOf[state.query.value] ?? -1);
  return found < 0 ? null : found;
});
export const column = computed<number | null>(() => {
  const found = state.key.value === null ? -1 : (shown.value?.columnOf[state.key.value] ?? -1);
  return found < 0 ? null : found;
});
/** Hover previews, the pin stays: what the panels speak of now. */
export const lookedRow = computed(() => state.hoverRow.value ?? row.value);
export const lookedColumn = computed(() => state.hoverColumn.value ?? column.value);

/** What the cell panel speaks of: pins at once, the pointer where it rests. */
export const rested = signal<{ row: number | null; column: number | null }>({ row: null, column: null });
const REST = 70;

export function followRest(): void {
  let waiting = 0;
  effect(() => {
    const now = { row: lookedRow.value, column: lookedColumn.value };
    clearTimeout(waiting);
    const set = (): void => {
      const { row: r, column: c } = rested.peek();
      if (r !== now.row || c !== now.column) rested.value = now;
    };
    if (state.hoverRow.value === null && state.hoverColumn.value === null) set();
    else waiting = window.setTimeout(set, REST);
  });
}

export const headLabel = (info: TraceInfo, layer: number, head: number): string =>
  `${info.layerNumbers[layer]}.${info.headNumbers[layer][head]}`;

const pictures = new Map<string, Picture>();

function remember(picture: Picture): Picture {
  pictures.delete(picture.key);
  pictures.set(picture.key, picture);
  let cells = 0;
  for (const one of [...pictures.values()].reverse()) {
    cells += one.full?.length ?? one.overview.data.length;
    if (cells > 8 * FULL_CELLS) pictures.delete(one.key);
  }
  return picture;
}

const largest = (data: Float32Array): number => {
  let most = 0;
  for (let n = 0; n < data.length; n++) if (Math.abs(data[n]) > most) most = Math.abs(data[n]);
  return most;
};

/** What the strongest colour and the thickest line stand for. */
export const mostOf = (picture: Picture): number =>
  picture.ownMost ?? (state.reach.value === "head" ? picture.strongest : 1);

export interface Wanted {
  doc: Doc;
  minus: Doc | null;
  shown: Shown;
  layer: number;
  head: number;
  normed: boolean;
}

export const wantedKey = (wanted: Wanted): string =>
  [wanted.doc.id, wanted.minus?.id ?? "", wanted.layer, wanted.head, wanted.normed, state.filter.value, state.special.value, state.merged.value].join("/");

export async function picture(
  wanted: Wanted, lane?: string, grown?: (data: Float32Array, done: number, all: number) => void,
): Promise<Picture> {
  const key = wantedKey(wanted);
  const held = pictures.get(key);
  if (held) return remember(held);
  const { view } = wanted.shown;
  const [rows, columns] = [size(view.rows), size(view.columns)];
  const name = { trace: wanted.doc.id, layer: wanted.layer, head: wanted.head };
  const minus = wanted.minus && { ...name, trace: wanted.minus.id };
  const whole = rows * columns <= FULL_CELLS;
  const urgency = lane?.startsWith("ahead") ? "ahead" : "now";
  if (whole && !minus) {
    const found = await engine.ask("head", { ...name, view, normed: wanted.normed }, lane, urgency);
    return remember({
      key, rows, columns,
      full: found.data,
      overview: { data: found.data, height: rows, width: columns },
      ownMost: wanted.normed ? found.strongest || 1 : null,
      strongest: found.strongest || 1,
      signed: false,
      entropies: found.entropies,
      most: found.most,
    });
  }
  const height = whole ? rows : Math.min(rows, OVERVIEW);
  const width = whole ? columns : Math.min(columns, OVERVIEW);
  const ask = { ...name, minus, view, normed: wanted.normed };
  let data: Float32Array;
  if (whole) {
    data = await engine.ask("tile", { ...ask, box: [0, rows, 0, columns], height, width }, lane, urgency);
  } else {
    data = new Float32Array(height * width);
    const strip = Math.max(1, Math.floor(STRIP_CELLS / columns / (rows / height)));
    for (let from = 0; from < height; from += strip) {
      const to = Math.min(height, from + strip);
      // a pooled row y holds the rows whose floor(r * height / rows) is y
      const first = Math.ceil((from * rows) / height);
      const last = Math.min(rows, Math.ceil((to * rows) / height));
      const part = await engine.ask("tile", { ...ask, box: [first, last, 0, columns], height: to - from, width }, lane);
      data.set(part, from * width);
      grown?.(data, from + (to - from), height);
    }
  }
  const scaled = minus || wanted.normed;
  return remember({
    key, rows, columns,
    full: whole ? data : null,
    overview: { data, height, width },
    ownMost: scaled ? largest(data) || 1 : null,
    strongest: largest(data) || 1,
    signed: Boolean(minus),
    entropies: null,
    most: null,
  });
}

/** A long text's picture before its own has been computed: the thumbnail, drawn large. */
function coarse(wanted: Wanted): Picture | null {
  const { thumbs, heads } = wanted.doc.info;
  const { view } = wanted.shown;
  const [rows, columns] = [size(view.rows), size(view.columns)];
  if (!thumbs || rows * columns <= FULL_CELLS || view.columns.members.length !== wanted.doc.info.keys.tokens.length) return null;
  const cells = thumbs.rows * thumbs.columns;
  const from = (wanted.layer * heads + wanted.head) * cells;
  const data = Float32Array.from(thumbs.data.subarray(from, from + cells), (byte) => (byte / 255) ** 2);
  return {
    key: `coarse/${wantedKey(wanted)}`, rows, columns, full: null,
    overview: { data, height: thumbs.rows, width: thumbs.columns }, ownMost: null, strongest: largest(data) || 1, signed: false,
    entropies: null, most: null,
  };
}

export const current = signal<Picture | null>(null);
export const computing = signal(false);
export const progress = signal(0);
export const wanted = computed<Wanted | null>(() =>
  doc.value && shown.value
    ? {
        doc: doc.value, minus: null, shown: shown.value, layer: at.value.layer, head: at.value.head,
        normed: state.normed.value && doc.value.info.valueNorms !== null,
      }
    : null,
);

let turn = 0;

export function followSelection(): void {
  effect(() => {
    const now = wanted.value;
    if (!now) return;
    const mine = ++turn;
    const rough = pictures.has(wantedKey(now)) ? null : coarse(now);
    if (rough) current.value = rough;
    computing.value = true;
    progress.value = 0;
    picture(now, "current", (_, done, all) => {
      if (mine === turn) progress.value = done / all;
      else throw new Superseded("another head");
    }).then(
      (found) => {
        if (mine !== turn) return;
        batch(() => {
          current.value = found;
          computing.value = false;
        });
        prefetch(now);
      },
      (error: Error) => {
        if (!(error instanceof Superseded) && mine === turn) failure.value = error.message;
      },
    );
  });
}

/** The neighbours that an arrow key would go to. */
function prefetch(now: Wanted): void {
  const { layers, heads } = now.doc.info;
  if (size(now.shown.view.rows) * size(now.shown.view.columns) > FULL_CELLS / 4) return;
  for (const [down, right] of [[0, 1], [1, 0], [0, -1], [-1, 0]] as const) {
    const next = { ...now, layer: now.layer + down, head: now.head + right };
    if (next.layer >= 0 && next.layer < layers.length && next.head >= 0 && next.head < heads && !pictures.has(wantedKey(next))) {
      picture(next, `ahead${down}${right}`).catch(() => undefined);
    }
  }
}

/** One row of the picture: at hand for short texts, asked for long ones. */
export const rowNumbers = signal<{ key: string; row: number; data: Float32Array } | null>(null);

export function followRow(): void {
  effect(() => {
    const [now, i, now_picture] = [wanted.value, lookedRow.value, current.value];
    if (!now || i === null || !now_picture || i >= now_picture.rows) {
      rowNumbers.value = null;
      return;
    }
    const key = wantedKey(now);
    if (now_picture.full && now_picture.key === key) {
      rowNumbers.value = { key, row: i, data: now_picture.full.subarray(i * now_picture.columns, (i + 1) * now_picture.columns) };
      return;
    }
    if (now_picture.full) return;
    engine
      .ask("rows", { trace: now.doc.id, layer: now.layer, head: now.head, view: now.shown.view, from: i, to: i + 1, normed: now.normed }, "row")
      .then((data) => {
        if (lookedRow.value === i && wanted.value === now) rowNumbers.value = { key, row: i, data };
      })
      .catch(() => undefined);
  });
}

/** Thumbnails and statistics that a file came without are computed head by head. */
async function measureAll(one: Doc): Promise<void> {
  const { info } = one;
  const names = ["entropy", "previous", "next", "same", "first", "separator", "distance", "strongest"];
  const rows = Math.min(48, info.queries.tokens.length);
  const columns = Math.min(48, info.keys.tokens.length);
  const count = info.layers.length * info.heads;
  const thumbs = info.thumbs ?? { data: new Uint8Array(count * rows * columns), rows, columns };
  const statistics = info.statistics ?? Object.fromEntries(names.map((name) => [name, new Float32Array(count).fill(NaN)]));
  for (let n = 0; n < count; n++) {
    const found = await engine.ask("measure", { trace: one.id, layer: Math.floor(n / info.heads), head: n % info.heads }, undefined, "background");
    thumbs.data.set(found.thumb, n * rows * columns);
    for (const name of names) statistics[name][n] = found.statistics[name];
    if (n % info.heads === info.heads - 1 || n === count - 1) {
      docs.value = docs.value.map((held) => (held.id === one.id ? { ...held, info: { ...held.info, thumbs, statistics } } : held));
    }
  }
}

let nextId = 0;

/** Bytes of a trace file, or base64 of them in stretches, each let go when it was sent. */
export type Source = { bytes: ArrayBuffer } | { parts: Iterable<string>; all: number };

export async function openTrace(source: Source, name: string | null, remote: string | null = null): Promise<Doc> {
  const id = nextId++;
  if ("parts" in source) for (const base64 of source.parts) await engine.ask("part", { id, base64, bytes: source.all });
  const info = await engine.ask("open", "parts" in source ? { id } : { id, bytes: source.bytes });
  const text = info.text === null ? info.queries.tokens.slice(0, 12).join(" ") : info.pair === null ? info.text : `${info.text} | ${info.pair}`;
  const one: Doc = { id, name: name ?? text, info, remote };
  docs.value = [...docs.value, one];
  if (!info.thumbs || !info.statistics) void measureAll(one);
  return one;
}

export function closeTrace(index: number): void {
  const one = docs.value[index];
  if (!one || docs.value.length < 2) return;
  batch(() => {
    docs.value = docs.value.filter((held) => held !== one);
    state.other.value = null;
    if (state.trace.value >= index && state.trace.value > 0) state.trace.value--;
  });
  void engine.ask("close", { id: one.id });
}
