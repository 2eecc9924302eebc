// A matrix as a map: positions of its cells on the screen, zooming, the visible part.
import { pooled } from "../trace/parts";
import type { Picture, Window } from "../drawing/pictures";
import type { Box } from "../state/state";

/** Around the cells: for labels; at the right, for the last column's, which is slanted. */
export interface Margins { left: number; top: number; right: number }
export const LABELS: Margins = { left: 84, top: 66, right: 24 };
/** The angle of a column's label, and the most that labels take. */
export const SLANT = Math.PI / 3.2;
const MOST = { left: 124, top: 104 };

/** Room for labels of these widths, where cells are at least so wide. */
export function around(rows: number[], columns: number[]): Margins {
  const out = columns.map((wide, n) => 10 + wide * Math.cos(SLANT) - (columns.length - n - 0.5) * 12);
  return {
    left: Math.min(MOST.left, Math.ceil(Math.max(20, ...rows)) + 12),
    top: Math.min(MOST.top, Math.ceil(Math.max(20, ...columns) * Math.sin(SLANT)) + 14),
    right: Math.ceil(Math.max(6, Math.min(60, ...[Math.max(...out)]))),
  };
}
const LARGEST = 88;

export interface Geometry {
  left: number;
  top: number;
  width: number;
  height: number;
  cell: number;
  row: number;
  column: number;
  /** Where a column and a row begin. */
  x(column: number): number;
  y(row: number): number;
}

/** Of places that stand closer than they have to, those of the greatest worth, and none beside another; in order. */
export function spaced(worth: readonly number[], apart: number): number[] {
  if (apart <= 1) return worth.map((_, n) => n);
  const kept: number[] = [];
  for (const n of worth.map((_, n) => n).sort((a, b) => worth[b] - worth[a] || a - b)) {
    if (kept.every((other) => Math.abs(other - n) >= apart)) kept.push(n);
  }
  return kept.sort((a, b) => a - b);
}

/** Space for cells, in pixels of the page. */
const plot = (width: number, height: number, { left, top, right }: Margins): [number, number] =>
  [Math.max(40, width - left - right), Math.max(40, height - top - 6)];

export function geometry(width: number, height: number, picture: Picture, box: Box, margins: Margins): Geometry {
  const [plotWidth, plotHeight] = plot(width, height, margins);
  const whole = Math.min(plotWidth / picture.columns, plotHeight / picture.rows, LARGEST);
  const cell = box ? Math.min(LARGEST * 1.4, Math.max(whole, Math.min(plotWidth, plotHeight) / box.span)) : whole;
  const seenRows = Math.min(picture.rows, plotHeight / cell);
  const seenColumns = Math.min(picture.columns, plotWidth / cell);
  const { left, top } = margins;
  const row = box ? Math.max(0, Math.min(box.top, picture.rows - seenRows)) : 0;
  const column = box ? Math.max(0, Math.min(box.left, picture.columns - seenColumns)) : 0;
  return {
    left, top, cell, row, column, width: seenColumns * cell, height: seenRows * cell,
    x: (at) => left + (at - column) * cell,
    y: (at) => top + (at - row) * cell,
  };
}

/** The window after zooming by a factor around the cell at (x, y), which stays in place; null for the whole matrix. */
export function zoomed(g: Geometry, picture: Picture, width: number, height: number, factor: number, x: number, y: number, margins: Margins): Box {
  const least = Math.min(...plot(width, height, margins));
  const most = Math.max(picture.rows, picture.columns);
  const span = Math.max(Math.min(4, most), (least / g.cell) * factor);
  if (span >= most) return null;
  const next = least / span;
  const r = g.row + (y - g.top) / g.cell;
  const c = g.column + (x - g.left) / g.cell;
  return { top: Math.max(0, r - (y - g.top) / next), left: Math.max(0, c - (x - g.left) / next), span };
}

/** Visible rows and columns [..): top, bottom, left, right. */
export function visible(g: Geometry, picture: Picture): Window {
  return [
    Math.floor(g.row), Math.min(picture.rows, Math.ceil(g.row + g.height / g.cell)),
    Math.floor(g.column), Math.min(picture.columns, Math.ceil(g.column + g.width / g.cell)),
  ];
}

/** Rows and columns [..) of a picture that has all its cells, pooled to at most height x width by the value furthest from 0. */
export const pool = ({ full, columns }: Picture, box: Window, height: number, width: number): Picture["overview"] =>
  pooled(box, height, width, (first) => full!.subarray(first * columns + box[2]), columns);

/** Changes the visible span of the matrix on the screen by a factor. */
export const zooming = { by: (_factor: number): void => undefined };
