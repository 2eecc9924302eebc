// Export of the current picture as SVG and PNG, and of its numbers as CSV and JSON, each with its caption.
import { captionOf, settings, type Caption, type Window } from "./caption";
import { strongestKeys } from "../trace/strongest";
import { engine } from "../trace/engine";
import { onScale, sequentialCss } from "./colour";
import { figureOf, LINE, wrapped } from "./figure";
import { csvCell, download, escaped, plainPart } from "./files";
import { toShare } from "../state/hash";
import { maskOf } from "../text/masking";
import { count, number, say } from "../words";
import * as state from "../state/state";
import { current, drawnOf, mostOf, wanted, type Picture } from "./pictures";
import { end } from "../panels/slots";
import { at, column, doc, docB, failure, headName, row, shown } from "../state/store";
import { mean } from "../heads/several";
import { isQuiet, placed, type Label } from "../text/shown";

/** Of a file about the head in view, or about a part of the page. */
export function fileName(kind: string, part?: string): string {
  const info = doc.value!.info;
  const { l, h } = headName(info, at.value);
  return `${plainPart(info.name.replaceAll("/", "-"))}-${part ?? `layer${l}-${mean.value ? `mean${mean.value.length}` : `head${h}`}`}.${kind}`;
}

function save(content: BlobPart, type: string, kind: string, part?: string): void {
  const name = fileName(kind, part);
  download(content, type, name);
  state.status.value = say("saved", { name });
}

/** The visible part of the matrix. */
function windowOf(picture: Picture): Window {
  const box = state.box.value;
  if (!box) return [0, picture.rows, 0, picture.columns];
  const [top, left] = [Math.min(Math.floor(box.top), picture.rows - 1), Math.min(Math.floor(box.left), picture.columns - 1)];
  return [top, Math.min(picture.rows, Math.ceil(box.top + box.span)), left, Math.min(picture.columns, Math.ceil(box.left + box.span))];
}

interface Part {
  picture: Picture;
  caption: Caption;
  rows: Label[];
  columns: Label[];
  /** (height, width). */
  data: Float32Array;
  height: number;
  width: number;
  /** Place of the pinned query and key in this part; null where they are not in it. */
  pin: [number | null, number | null];
  /** True where the mask hides a key. */
  hidden(r: number, c: number): boolean;
}

/** The visible part, pooled by maximum if it has more than so many cells. */
async function seen(most: number): Promise<Part> {
  const [now, picture, words] = [wanted.value, current.value, shown.value];
  if (!now || !picture || !words) throw new Error(say("no_trace"));
  const box = windowOf(picture);
  const [top, bottom, left, right] = box;
  const shrink = Math.max(1, Math.sqrt(((bottom - top) * (right - left)) / most));
  const height = Math.ceil((bottom - top) / shrink);
  const width = Math.ceil((right - left) / shrink);
  const data = await engine.ask("tile", {
    ...drawnOf(now), minus: null, view: now.shown.view, box, height, width, normed: now.normed,
  });
  const [rows, columns] = [words.rows.slice(top, bottom), words.columns.slice(left, right)];
  const masked = shrink === 1 ? maskOf(now.doc.info, now.layer, now.mean) : null;
  const inside = (place: number | null, from: number, to: number): number | null => (place !== null && place >= from && place < to ? place - from : null);
  return {
    picture, caption: await captionOf(picture, box), rows, columns, data, height, width, pin: [inside(row.value, top, bottom), inside(column.value, left, right)],
    hidden: (r, c) => masked !== null && masked(rows[r], columns[c], data[r * width + c]),
  };
}

const MOST_CELLS = 40_000;
const PIN = "#c2410c";
/** An SVG for a paper: white background, the chosen scale, tokens, the pinned cell, a legend, and a caption. */
export async function figure(): Promise<string> {
  const { picture, caption, rows, columns, data, height: down, width: across, pin: [pinRow, pinColumn], hidden } = await seen(MOST_CELLS);
  const withMatrix = state.mode.value !== "lines";
  const pooled = down !== rows.length || across !== columns.length;
  const withLines = state.mode.value !== "matrix" && !pooled && rows.length <= 200 && columns.length <= 200;
  const cell = Math.max(2, Math.min(24, 600 / Math.max(down, across)));
  const parts: string[] = [];
  let x = 16;
  let height = 60;
  const text = (label: Label, pinned: boolean, place: string): string =>
    `<text ${place}${pinned ? ` fill="${PIN}" font-weight="700"` : isQuiet(label) ? ' fill="#667080" font-style="italic"' : ""}>${escaped(placed(label))}</text>`;
  const frame = (left: number, top: number, wide: number, high: number, line: number): string =>
    `<rect x="${left.toFixed(1)}" y="${top.toFixed(1)}" width="${wide.toFixed(1)}" height="${high.toFixed(1)}" fill="none" stroke="${PIN}" stroke-width="${line}"/>`;
  if (withLines) {
    const colour = "#2f62b5";
    const y = (n: number): number => 52 + n * 18;
    rows.forEach((label, n) => parts.push(text(label, n === pinRow, `x="${x + 120}" y="${y(n) + 4}" text-anchor="end"`)));
    columns.forEach((label, n) => parts.push(text(label, n === pinColumn, `x="${x + 300}" y="${y(n) + 4}"`)));
    for (let r = 0; r < rows.length; r++) {
      if (row.value !== null && r !== pinRow) continue;
      const numbers = data.subarray(r * columns.length, (r + 1) * columns.length);
      const keys = strongestKeys(numbers, state.mass.value);
      const pinned = r === pinRow && pinColumn !== null && !hidden(r, pinColumn) ? pinColumn : null;
      for (const c of pinned === null ? keys : [...keys.filter((key) => key !== pinned), pinned]) {
        const t = Math.min(1, numbers[c] / mostOf(picture));
        parts.push(`<path d="M${x + 126} ${y(r)}C${x + 190} ${y(r)} ${x + 230} ${y(c)} ${x + 294} ${y(c)}" fill="none" stroke="${c === pinned ? PIN : colour}" stroke-width="${(0.6 + 3.4 * t).toFixed(2)}" stroke-opacity="${c === pinned ? 1 : (0.12 + 0.88 * Math.sqrt(t)).toFixed(2)}"/>`);
      }
    }
    height = Math.max(height, y(Math.max(rows.length, columns.length)));
    x += 440;
  }
  if (withMatrix) {
    const [ox, oy] = [x + 96, 120];
    for (let r = 0; r < down; r++) {
      for (let c = 0; c < across; c++) {
        const shade = hidden(r, c) ? "#e7ebf0" : sequentialCss(onScale(data[r * across + c], mostOf(picture), state.scale.value), false);
        parts.push(`<rect x="${(ox + c * cell).toFixed(2)}" y="${(oy + r * cell).toFixed(2)}" width="${cell.toFixed(2)}" height="${cell.toFixed(2)}" fill="${shade}"/>`);
      }
    }
    const [high, wide] = [(down * cell) / rows.length, (across * cell) / columns.length];
    const [everyRow, everyColumn] = [Math.ceil(10 / high), Math.ceil(10 / wide)];
    rows.forEach((label, n) => {
      if (n % everyRow === 0 || n === pinRow) parts.push(text(label, n === pinRow, `x="${ox - 5}" y="${(oy + (n + 0.5) * high + 4).toFixed(1)}" text-anchor="end"`));
    });
    columns.forEach((label, n) => {
      if (n % everyColumn === 0 || n === pinColumn) parts.push(text(label, n === pinColumn, `transform="translate(${(ox + (n + 0.5) * wide + 3).toFixed(1)} ${oy - 5}) rotate(-55)"`));
    });
    if (pinRow !== null) parts.push(frame(ox, oy + pinRow * high, across * cell, high, 1));
    if (pinColumn !== null) parts.push(frame(ox + pinColumn * wide, oy, wide, down * cell, 1));
    if (pinRow !== null && pinColumn !== null) parts.push(frame(ox + pinColumn * wide, oy + pinRow * high, wide, high, 2.5));
    const ly = oy + down * cell + 18;
    for (let n = 0; n < 60; n++) parts.push(`<rect x="${ox + n * 2}" y="${ly}" width="2.2" height="8" fill="${sequentialCss(onScale(n / 59, 1, state.scale.value), false)}"/>`);
    parts.push(`<text x="${ox}" y="${ly + 20}">0</text><text x="${ox + 120}" y="${ly + 20}" text-anchor="end">${end(mostOf(picture))}</text><text x="${ox + 130}" y="${ly + 8}">${escaped(say(`scale_${state.scale.value}`))}</text>`);
    height = Math.max(height, ly + 24);
    x = ox + across * cell + 60;
  }
  const wide = Math.max(x, 560);
  const notes = [...(pooled ? [`(${say("pooled", { n: number((rows.length * columns.length) / (down * across), 1) })})`] : []), ...caption.sentences];
  const lines = wrapped(notes.join(" "), wide - 32);
  const tall = height + 16 + LINE * lines.length;
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${wide.toFixed(0)}" height="${tall.toFixed(0)}" viewBox="0 0 ${wide.toFixed(0)} ${tall.toFixed(0)}" font-family="system-ui, sans-serif" font-size="11" fill="#222">` +
    `<title>${escaped(caption.title)}</title><desc>${escaped(notes.join(" "))}</desc>` +
    `<rect width="100%" height="100%" fill="#fff"/><text x="16" y="24" font-size="13" font-weight="600">${escaped(caption.title)}</text>${parts.join("")}` +
    `${lines.map((line, n) => `<text x="16" y="${(height + 20 + LINE * n).toFixed(0)}" fill="#555">${escaped(line)}</text>`).join("")}</svg>`
  );
}

const saveSvg = (svg: string, part?: string): void => save(svg, "image/svg+xml", "svg", part);

async function savePng(svg: string, part?: string): Promise<void> {
  const image = new Image();
  const [, width, height] = /width="(\d+)" height="(\d+)"/.exec(svg)!;
  await new Promise((resolve, reject) => {
    image.onload = resolve;
    image.onerror = () => reject(new Error("the browser can't draw the figure"));
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  });
  const canvas = document.createElement("canvas");
  const zoom = Math.min(3, 8000 / Math.max(Number(width), Number(height)));
  canvas.width = Number(width) * zoom;
  canvas.height = Number(height) * zoom;
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
  if (blob) save(blob, "image/png", "png", part);
}

const EVERY_CELL = 4_000_000;

async function numbers(): Promise<Part> {
  const part = await seen(EVERY_CELL);
  if (part.height !== part.rows.length || part.width !== part.columns.length) throw new Error(say("save_large", { n: count(part.rows.length * part.columns.length), most: count(EVERY_CELL) }));
  return part;
}

/** Numbers of one row; `none` where the mask hides a key. */
const rowOf = <T>({ data, width, hidden }: Part, r: number, write: (weight: number) => T, none: T): T[] =>
  Array.from(data.subarray(r * width, (r + 1) * width), (weight, c) => (hidden(r, c) ? none : write(weight)));

/** A caption in one line, without the marks that keep quoted words apart on a screen. */
const plainText = ({ sentences }: Caption): string => sentences.join(" ").replace(/[\u2068\u2069]/g, "").replace(/\s+/g, " ");

/** Queries down, keys across; the caption stands in the first cell, so that every program reads the rest as a table. */
async function saveCsv(): Promise<void> {
  const part = await numbers();
  const { caption, rows, columns } = part;
  const lines = [[csvCell(plainText(caption)), ...columns.map((label) => csvCell(label.text))].join(",")];
  rows.forEach((label, r) => lines.push([csvCell(label.text), ...rowOf(part, r, (weight) => weight.toFixed(6), "")].join(",")));
  save(`${lines.join("\r\n")}\r\n`, "text/csv;charset=utf-8", "csv");
}

async function saveJson(): Promise<void> {
  const part = await numbers();
  const { caption, picture, rows, columns } = part;
  const info = doc.value!.info;
  const plain = (label: Label): object => ({ text: label.text, tokens: label.tokens });
  save(JSON.stringify({
    model: info.model, text: info.text, pair: info.pair,
    layer: info.layerNumbers[at.value.layer], head: info.headNumbers[at.value.layer][at.value.head],
    ...(mean.value && { mean: mean.value.map(([layer, head]) => [info.layerNumbers[layer], info.headNumbers[layer][head]]) }),
    caption: plainText(caption), settings: settings(picture), state: toShare(state.FIELDS), pinned: caption.pinned,
    queries: rows.map(plain), keys: columns.map(plain),
    weights: rows.map((_, r) => rowOf<number | null>(part, r, (weight) => Number(weight.toFixed(6)), null)),
  }, null, 1), "application/json", "json");
}

/** The ways to save the head in view, by what a button calls them. */
const WAYS = { SVG: async () => saveSvg(await figure()), PNG: async () => savePng(await figure()), CSV: saveCsv, JSON: saveJson };
export const KINDS = Object.keys(WAYS) as (keyof typeof WAYS)[];
export const FIGURES = ["SVG", "PNG"] as const;

/** Parts of the page that become a figure: what each is called in a file's name, as a word, and its place. */
const PARTS = { difference: ["pane_compare", ".moved"], effects: ["pane_causes", ".shownrun"], follow: ["pane_follow", ".follow"], chain: ["cell", ".cell.line, .cell.chain"], heads: ["grid", ".grid"] } as const;
export type FigureOf = keyof typeof PARTS;

/** Those that are on the screen. */
export const partsHere = (): [FigureOf, string][] =>
  Object.entries(PARTS).filter(([, [, place]]) => document.querySelector(place)?.checkVisibility()).map(([name, [word]]) => [name as FigureOf, say(word)]);

async function savePart(kind: (typeof FIGURES)[number], part: FigureOf): Promise<void> {
  const said = [doc.value!, ...(part === "difference" ? [docB.value!] : [])].flatMap(({ info: { text, pair } }) => (
    text === null ? [] : say("figure_text", { all: pair === null ? text : `${text} | ${pair}` })));
  const [word, place] = PARTS[part];
  await (kind === "SVG" ? saveSvg : savePng)(await figureOf(document.querySelector(place)!, `${doc.value!.info.name} · ${say(word)}`, said.join(" ")), part);
}

/** Save the head in view, or a part of the page. */
export function saveAs(kind: keyof typeof WAYS, part?: FigureOf): void {
  (part ? savePart(kind as (typeof FIGURES)[number], part) : WAYS[kind]()).catch((error: Error) => { failure.value = say("save_failed", { why: error.message }); });
}
