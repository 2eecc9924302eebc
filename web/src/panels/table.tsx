// The numbers as a table, for screen readers and for reading: the part around the hovered or pinned cell.
import type { ComponentChildren } from "preact";
import { signal } from "@preact/signals";
import { statisticName } from "../heads/catalog";
import { number, say } from "../words";
import { maskOf } from "../text/masking";
import { marked } from "../text/shown";
import { guessAt } from "../heads/guesses";
import { title } from "../heads/several";
import { asked } from "../state/comparing";
import { askedNumbers } from "../heads/ranking";
import { coming } from "../heads/statistics";
import { useFetched } from "./fetched";
import { partOf } from "../drawing/caption";
import { cellsOf, wanted, wantedKey } from "../drawing/pictures";
import { column, doc, row, sameHeads } from "../state/store";

export const tableOpen = signal(false);
const MOST = 24;

/** Numbers under the names of their columns and beside those of their rows; its children say what they are. */
const Table = ({ rows, columns, cell, children }: { rows: (string | number)[]; columns: (string | number)[]; cell: (r: number, c: number) => string; children: ComponentChildren }) => (
  <table>
    <caption>{children}</caption>
    <thead><tr><td />{columns.map((name, c) => <th key={c} scope="col" title={String(name)}><bdi>{name}</bdi></th>)}</tr></thead>
    <tbody>{rows.map((name, r) => <tr key={r}><th scope="row" title={String(name)}><bdi>{name}</bdi></th>{columns.map((_, c) => <td key={c}>{cell(r, c)}</td>)}</tr>)}</tbody>
  </table>
);

export function NumberTable() {
  const now = wanted.value!;
  const { rows, columns } = now.shown;
  const around = (place: number | null, size: number): [number, number] => {
    const from = Math.max(0, Math.min((place ?? 0) - MOST / 2, size - MOST));
    return [from, Math.min(size, from + MOST)];
  };
  const [top, bottom] = around(row.value, rows.length);
  const [left, right] = around(column.value, columns.length);
  const numbers = useFetched([wantedKey(now), top, bottom, left, right].join("/"), () => cellsOf(now, [top, bottom, left, right], undefined, undefined, "table"));
  const wide = right - left;
  const masked = maskOf(now);
  /** A key that the mask hides has no weight. */
  const shownNumber = (r: number, c: number): string => {
    const weight = numbers?.[r * wide + c];
    if (weight === undefined) return "";
    return masked?.(rows[top + r], columns[left + c], weight) ? "–" : number(weight);
  };
  return (
    <div class="numbers" tabIndex={0}>
      <Table rows={rows.slice(top, bottom).map(marked)} columns={columns.slice(left, right).map(marked)} cell={shownNumber}>
        {say("table_caption", { what: title() })}
        {partOf([top, bottom, left, right]).map((part) => ` · ${part}`)}
      </Table>
    </div>
  );
}

export const gridTableOpen = signal(false);

/** The chosen statistic of every head. Always present for screen readers; visible when opened. */
export function GridTable() {
  const { info } = doc.value!;
  const name = asked.value;
  const numbers = askedNumbers.value;
  const cell = (n: number): string => {
    const guess = guessAt(n);
    return guess ? `${guess.label} ${number(guess.share)}` : numbers ? number(numbers[n]) : "–";
  };
  return (
    <div class={gridTableOpen.value ? "gridtable panel" : "unseen"} data-test="grid-table" aria-busy={coming.value !== null} tabIndex={gridTableOpen.value ? 0 : undefined}>
      {gridTableOpen.value && <button class="closing" onClick={() => { gridTableOpen.value = false; }}>{say("close")}</button>}
      <Table rows={info.layerNumbers} columns={info.headNumbers[0].map((head, n) => (sameHeads(info) ? head : n))} cell={(l, h) => cell(l * info.heads + h)}>
        {say("grid_caption", { what: statisticName(name) })}
      </Table>
    </div>
  );
}
