// Export of the current picture as SVG and PNG, of its numbers as CSV and JSON, and of its link.
import { strongestKeys } from "./trace/strongest";
import { engine } from "./trace/engine";
import { headColour, onScale, sequentialCss } from "./colour";
import { csvCell, download, escaped, plainPart } from "./files";
import { toHash } from "./hash";
import { say } from "./words";
import * as state from "./state";
import { current, drawnOf, mostOf, wanted, type Picture } from "./pictures";
import { at, column, doc, headName, row, shown } from "./store";
import { mean, title } from "./several";
import { marked, type Label } from "./shown";

function fileName(kind: string): string {
  const info = doc.value!.info;
  const { l, h } = headName(info, at.value);
  return `${plainPart(info.name)}-layer${l}-${mean.value ? `mean${mean.value.length}` : `head${h}`}.${kind}`;
}

function save(content: BlobPart, type: string, kind: string): void {
  const name = fileName(kind);
  download(content, type, name);
  state.status.value = say("saved", { name });
}

/** The visible part of the matrix: rows and columns [..). */
function window_(picture: Picture): [number, number, number, number] {
  const box = state.box.value;
  if (!box) return [0, picture.rows, 0, picture.columns];
  const [top, left] = [Math.min(Math.floor(box.top), picture.rows - 1), Math.min(Math.floor(box.left), picture.columns - 1)];
  return [top, Math.min(picture.rows, Math.ceil(box.top + box.span)), left, Math.min(picture.columns, Math.ceil(box.left + box.span))];
}

const MOST_CELLS = 40_000;

/** Numbers of the visible part, max-pooled if there are too many for a drawing. */
async function seen(most: number): Promise<{ data: Float32Array; height: number; width: number; box: [number, number, number, number] } | null> {
  const [now, picture] = [wanted.value, current.value];
  if (!now || !picture) return null;
  const box = window_(picture);
  const [top, bottom, left, right] = box;
  const shrink = Math.max(1, Math.sqrt(((bottom - top) * (right - left)) / most));
  const height = Math.ceil((bottom - top) / shrink);
  const width = Math.ceil((right - left) / shrink);
  const data = await engine.ask("tile", {
    ...drawnOf(now), minus: null, view: now.shown.view, box, height, width, normed: now.normed,
  });
  return { data, height, width, box };
}

/** An SVG for a paper: white background, the chosen scale, tokens, a legend, and notes on what was hidden or joined. */
export async function figure(): Promise<string> {
  const part = await seen(MOST_CELLS);
  const [words, info, picture] = [shown.value, doc.value?.info, current.value];
  if (!part || !words || !info || !picture) throw new Error(say("no_trace"));
  const [top, bottom, left, right] = part.box;
  const rows = words.rows.slice(top, bottom);
  const columns = words.columns.slice(left, right);
  const withMatrix = state.mode.value !== "lines";
  const withLines = state.mode.value !== "matrix" && rows.length <= 200 && columns.length <= 200;
  const cell = Math.max(2, Math.min(24, 600 / Math.max(part.height, part.width)));
  const parts: string[] = [];
  const heading = `${info.name} · ${title()}`;
  let x = 16;
  let height = 60;
  if (withLines) {
    const line = 18;
    const colour = headColour(at.value.head, info.heads, false);
    const data = part.width === columns.length && part.height === rows.length ? part.data : null;
    const y = (n: number): number => 52 + n * line;
    rows.forEach((label, n) => parts.push(`<text x="${x + 120}" y="${y(n) + 4}" text-anchor="end">${escaped(marked(label))}</text>`));
    columns.forEach((label, n) => parts.push(`<text x="${x + 300}" y="${y(n) + 4}">${escaped(marked(label))}</text>`));
    for (let r = 0; data && r < rows.length; r++) {
      if (row.value !== null && row.value !== r + top) continue;
      const numbers = data.subarray(r * columns.length, (r + 1) * columns.length);
      for (const c of strongestKeys(numbers, state.mass.value)) {
        const t = Math.min(1, numbers[c] / mostOf(picture));
        parts.push(`<path d="M${x + 126} ${y(r)}C${x + 190} ${y(r)} ${x + 230} ${y(c)} ${x + 294} ${y(c)}" fill="none" stroke="${colour}" stroke-width="${(0.6 + 3.4 * t).toFixed(2)}" stroke-opacity="${(0.12 + 0.88 * Math.sqrt(t)).toFixed(2)}"/>`);
      }
    }
    height = Math.max(height, y(Math.max(rows.length, columns.length)));
    x += 440;
  }
  if (withMatrix) {
    const [ox, oy] = [x + 96, 120];
    for (let r = 0; r < part.height; r++) {
      for (let c = 0; c < part.width; c++) {
        const value = part.data[r * part.width + c];
        const shade = sequentialCss(onScale(value, mostOf(picture), state.scale.value), false);
        parts.push(`<rect x="${(ox + c * cell).toFixed(2)}" y="${(oy + r * cell).toFixed(2)}" width="${cell.toFixed(2)}" height="${cell.toFixed(2)}" fill="${shade}"/>`);
      }
    }
    const [down, across] = [(part.height * cell) / rows.length, (part.width * cell) / columns.length];
    const [everyRow, everyColumn] = [Math.ceil(10 / down), Math.ceil(10 / across)];
    rows.forEach((label, n) => { if (n % everyRow === 0) parts.push(`<text x="${ox - 5}" y="${(oy + (n + 0.5) * down + 4).toFixed(1)}" text-anchor="end">${escaped(marked(label))}</text>`); });
    columns.forEach((label, n) => { if (n % everyColumn === 0) parts.push(`<text transform="translate(${(ox + (n + 0.5) * across + 3).toFixed(1)} ${oy - 5}) rotate(-55)">${escaped(marked(label))}</text>`); });
    if (row.value !== null && row.value >= top && row.value < bottom) {
      parts.push(`<rect x="${ox}" y="${(oy + (row.value - top) * down).toFixed(1)}" width="${(part.width * cell).toFixed(1)}" height="${down.toFixed(1)}" fill="none" stroke="#c2410c" stroke-width="1.5"/>`);
    }
    const ly = oy + part.height * cell + 18;
    for (let n = 0; n < 60; n++) parts.push(`<rect x="${ox + n * 2}" y="${ly}" width="2.2" height="8" fill="${sequentialCss(onScale(n / 59, 1, state.scale.value), false)}"/>`);
    parts.push(`<text x="${ox}" y="${ly + 20}">0</text><text x="${ox + 120}" y="${ly + 20}" text-anchor="end">${mostOf(picture).toFixed(2)}</text><text x="${ox + 130}" y="${ly + 8}">${escaped(say(`scale_${state.scale.value}`))}</text>`);
    height = Math.max(height, ly + 24);
    x = ox + part.width * cell + 16;
  }
  const notes = remarks().join(" · ");
  const wide = Math.max(x, 480);
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${wide.toFixed(0)}" height="${(height + 28).toFixed(0)}" viewBox="0 0 ${wide.toFixed(0)} ${(height + 28).toFixed(0)}" font-family="system-ui, sans-serif" font-size="11" fill="#222">` +
    `<rect width="100%" height="100%" fill="#fff"/><text x="16" y="24" font-size="13" font-weight="600">${escaped(heading)}</text>` +
    `${parts.join("")}<text x="16" y="${(height + 18).toFixed(0)}" fill="#666">${escaped(notes)}</text></svg>`
  );
}

/** Notes on what was hidden, joined or cut. */
export function remarks(): string[] {
  const words = shown.value;
  const notes: string[] = [];
  if (!words) return notes;
  if (state.mode.value !== "matrix") notes.push(`${say("mass")} ${Math.round(100 * state.mass.value)}%`);
  if (state.filter.value !== "all") notes.push(say(`filter_${state.filter.value}`));
  if (words.renormalised) notes.push(say("renormalised"));
  else if (words.partial) notes.push(say("partial"));
  if (state.merged.value) notes.push(say("merged_note"));
  if (wanted.value?.normed) notes.push(say("normed_note"));
  const info = doc.value?.info;
  if (info?.broken.has(at.value.layer * info.heads + at.value.head)) notes.push(say("broken_says"));
  return notes;
}

export async function saveSvg(): Promise<void> {
  save(await figure(), "image/svg+xml", "svg");
}

export async function savePng(): Promise<void> {
  const svg = await figure();
  const image = new Image();
  const [, width, height] = /width="(\d+)" height="(\d+)"/.exec(svg)!;
  await new Promise((resolve, reject) => {
    image.onload = resolve;
    image.onerror = () => reject(new Error("the figure can't be drawn"));
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  });
  const canvas = document.createElement("canvas");
  const zoom = Math.min(3, 8000 / Math.max(Number(width), Number(height)));
  canvas.width = Number(width) * zoom;
  canvas.height = Number(height) * zoom;
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
  if (blob) save(blob, "image/png", "png");
}

const EVERY_CELL = 4_000_000;

async function numbers(): Promise<{ rows: Label[]; columns: Label[]; data: Float32Array }> {
  const part = await seen(EVERY_CELL);
  const words = shown.value;
  if (!part || !words) throw new Error(say("no_trace"));
  const [top, bottom, left, right] = part.box;
  if (part.height !== bottom - top || part.width !== right - left) throw new Error(say("pooled", { n: "" }));
  return { rows: words.rows.slice(top, bottom), columns: words.columns.slice(left, right), data: part.data };
}

export async function saveCsv(): Promise<void> {
  const { rows, columns, data } = await numbers();
  const lines = [["", ...columns.map((label) => csvCell(label.text))].join(",")];
  rows.forEach((label, r) => {
    lines.push([csvCell(label.text), ...Array.from(data.subarray(r * columns.length, (r + 1) * columns.length), (x) => x.toFixed(6))].join(","));
  });
  save(`${lines.join("\r\n")}\r\n`, "text/csv;charset=utf-8", "csv");
}

export async function saveJson(): Promise<void> {
  const { rows, columns, data } = await numbers();
  const info = doc.value!.info;
  const plain = (label: Label): object => ({ text: label.text, tokens: label.tokens });
  save(JSON.stringify({
    model: info.model, text: info.text, pair: info.pair,
    layer: info.layerNumbers[at.value.layer], head: info.headNumbers[at.value.layer][at.value.head],
    ...(mean.value && { mean: mean.value.map(([layer, head]) => [info.layerNumbers[layer], info.headNumbers[layer][head]]) }),
    notes: remarks(), queries: rows.map(plain), keys: columns.map(plain),
    pinned: { query: row.value, key: column.value },
    weights: rows.map((_, r) => Array.from(data.subarray(r * columns.length, (r + 1) * columns.length), (x) => Number(x.toFixed(6)))),
  }, null, 1), "application/json", "json");
}

export async function copyLink(): Promise<void> {
  const hash = toHash(state.FIELDS);
  try {
    await navigator.clipboard.writeText(location.href.replace(/#.*$/, "") + (hash ? `#${hash}` : ""));
    state.status.value = say("copied");
  } catch {
    state.status.value = say("copy_failed");
  }
}
