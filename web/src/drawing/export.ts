// Export of the current picture as SVG and PNG, and of its numbers as CSV and JSON, each with its caption.
import { captionOf, textOf } from "./caption";
import { figureOf } from "./figure";
import { csvCell, download, plainPart } from "./files";
import { maskOf } from "../text/masking";
import { count, number, say } from "../words";
import * as state from "../state/state";
import { cellsOf, current, wanted, type Picture, type Window } from "./pictures";
import { cellsInPixel, partSeen } from "../panels/matrix";
import { docB } from "../state/comparing";
import { at, doc, failure, headName, shown } from "../state/store";
import { mean } from "../heads/several";

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
  if (partSeen.value && ["both", "matrix"].includes(state.mode.value)) return partSeen.value;
  const [top, left] = [Math.min(Math.floor(box.top), picture.rows - 1), Math.min(Math.floor(box.left), picture.columns - 1)];
  return [top, Math.min(picture.rows, Math.ceil(box.top + box.span)), left, Math.min(picture.columns, Math.ceil(box.left + box.span))];
}

const saveSvg = async (svg: string, part?: string): Promise<void> => save(svg, "image/svg+xml", "svg", part);

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

/** The visible part, queries down, keys across; the caption stands in the first cell, so that every program reads the rest as a table. */
async function saveCsv(): Promise<void> {
  const [now, picture, words] = [wanted.value, current.value, shown.value];
  if (!now || !picture || !words) throw new Error(say("no_trace"));
  const box = windowOf(picture);
  const [top, bottom, left, right] = box;
  const [height, width] = [bottom - top, right - left];
  if (height * width > EVERY_CELL) throw new Error(say("save_large", { n: count(height * width), most: count(EVERY_CELL) }));
  const data = await cellsOf(now, box);
  const [rows, columns] = [words.rows.slice(top, bottom), words.columns.slice(left, right)];
  const masked = maskOf(now);
  const { sentences } = await captionOf(picture, box);
  // in one line, without the marks that keep quoted words apart on a screen
  const caption = sentences.join(" ").replace(/[\u2068\u2069]/g, "").replace(/\s+/g, " ");
  const lines = [[caption, ...columns.map(({ text }) => text)].map(csvCell), ...rows.map((label, r) => [
    csvCell(label.text), ...Array.from(data.subarray(r * width, (r + 1) * width), (weight, c) => (masked?.(label, columns[c], weight) ? "" : weight.toFixed(6))),
  ])];
  save(`${lines.map((line) => line.join(",")).join("\r\n")}\r\n`, "text/csv;charset=utf-8", "csv");
}

/** How figures are saved, by what a button calls them. */
const FIGURE_WAYS = { SVG: saveSvg, PNG: savePng };
export type Kind = keyof typeof FIGURE_WAYS | "CSV";
export const FIGURES: Kind[] = ["SVG", "PNG"];
export const KINDS: Kind[] = [...FIGURES, "CSV"];

/** Parts of the page that become a figure: what each is called in a file's name, as a word, and its place. */
const PARTS = { difference: ["pane_compare", ".moved"], effects: ["pane_causes", ".shownrun"], follow: ["pane_follow", ".follow"], chain: ["cell", ".cell.line, .cell.chain"], heads: ["grid", ".grid"] } as const;
export type FigureOf = keyof typeof PARTS;

/** Those that are on the screen. */
export const partsHere = (): [FigureOf, string][] =>
  Object.entries(PARTS).filter(([, [, place]]) => document.querySelector(place)?.checkVisibility()).map(([name, [word]]) => [name as FigureOf, say(word)]);

/** A part's place, and what stands above and below it. */
function ofPart(part: FigureOf): [string, string, string[]] {
  const [word, place] = PARTS[part];
  return [place, `${doc.value!.info.name} · ${say(word)}`, [doc.value!, ...(part === "difference" ? [docB.value!] : [])].flatMap(({ info }) => textOf(info))];
}

/** The head in view. */
async function ofHead(): Promise<[string, string, string[]]> {
  const { title, sentences } = await captionOf(current.value!, windowOf(current.value!));
  const pooled = state.mode.value !== "lines" && cellsInPixel.value > 1.05;
  return [".picture", title, [...(pooled ? [`(${say("pooled", { n: number(cellsInPixel.value, 1) })})`] : []), ...sentences]];
}

async function saveFigure(kind: keyof typeof FIGURE_WAYS, part?: FigureOf): Promise<void> {
  const [place, title, below] = part ? ofPart(part) : await ofHead();
  await FIGURE_WAYS[kind](await figureOf(document.querySelector(place)!, title, below.join(" ")), part);
}

/** Save the head in view, or a part of the page. */
export function saveAs(kind: Kind, part?: FigureOf): void {
  (kind === "CSV" ? saveCsv() : saveFigure(kind, part)).catch((error: Error) => { failure.value = say("save_failed", { why: error.message }); });
}
