// The numbers as a table, for screen readers and for reading: the part around the hovered or pinned cell.
import type { ComponentChildren } from "preact";
import { signal } from "@preact/signals";
import { statisticName } from "../heads/catalog";
import { count, number, say } from "../words";
import { maskOf } from "../text/masking";
import { marked } from "../text/shown";
import { guessAt } from "../heads/guesses";
import { title } from "../heads/several";
import { asked } from "../state/comparing";
import { coming, table } from "../heads/statistics";
import { useFetched } from "./fetched";
import { cellsOf, wanted, wantedKey } from "../drawing/pictures";
import { column, doc, row, sameHeads, shown } from "../state/store";

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
  const info = doc.value?.info;
  const words = shown.value;
  const now = wanted.value;
  const around = (place: number | null, size: number): [number, number] => {
    const from = Math.max(0, Math.min((place ?? 0) - MOST / 2, size - MOST));
    return [from, Math.min(size, from + MOST)];
  };
  const [top, bottom] = around(row.value, words?.rows.length ?? 0);
  const [left, right] = around(column.value, words?.columns.length ?? 0);
  const numbers = useFetched(!now || bottom <= top || right <= left ? "" : [wantedKey(now), top, bottom, left, right].join("/"), () => cellsOf(now!, [top, bottom, left, right], undefined, undefined, "table"));
  if (!info || !words || !now) return null;
  const wide = right - left;
  const masked = maskOf(info, now.layer, now.mean);
  /** A key that the mask hides has no weight. */
  const shownNumber = (r: number, c: number): string => {
    const weight = numbers?.[r * wide + c];
    if (weight === undefined) return "";
    return masked?.(words.rows[top + r], words.columns[left + c], weight) ? "–" : number(weight);
  };
  return (
    <div class="numbers" tabIndex={0}>
      <Table rows={words.rows.slice(top, bottom).map(marked)} columns={words.columns.slice(left, right).map(marked)} cell={shownNumber}>
        {say("table_caption", { what: title() })}
        {(wide < words.columns.length || bottom - top < words.rows.length) && ` · ${say("table_part", {
          from: top, to: bottom - 1, left, right: right - 1, rows: count(words.rows.length), columns: count(words.columns.length),
        })}`}
      </Table>
    </div>
  );
}

export const gridTableOpen = signal(false);

/** The chosen statistic of every head. Always present for screen readers; visible when opened. */
export function GridTable() {
  const info = doc.value?.info;
  if (!info) return null;
  const name = asked.value;
  const numbers = table.value?.[name];
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
