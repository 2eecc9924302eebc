// The numbers as a table, for screen readers and for reading: the part around the hovered or pinned cell.
import { useEffect } from "preact/hooks";
import { signal, useSignal } from "@preact/signals";
import { engine } from "../trace/engine";
import { statisticName } from "../catalog";
import { count, number, say } from "../words";
import { maskOf } from "../masking";
import { marked } from "../shown";
import { title } from "../several";
import { asked } from "../comparing";
import { coming, table } from "../statistics";
import { drawnOf, wanted, wantedKey } from "../pictures";
import { column, doc, row, sameHeads, shown } from "../store";

export const tableOpen = signal(false);
const MOST = 24;

export function NumberTable() {
  const data = useSignal<{ key: string; numbers: Float32Array } | null>(null);
  const info = doc.value?.info;
  const words = shown.value;
  const now = wanted.value;
  const around = (place: number | null, size: number): [number, number] => {
    const from = Math.max(0, Math.min((place ?? 0) - MOST / 2, size - MOST));
    return [from, Math.min(size, from + MOST)];
  };
  const [top, bottom] = around(row.value, words?.rows.length ?? 0);
  const [left, right] = around(column.value, words?.columns.length ?? 0);
  const key = [now && wantedKey(now), top, bottom, left, right].join("/");
  useEffect(() => {
    if (!now || bottom <= top || right <= left) return;
    engine.ask("tile", {
      ...drawnOf(now), minus: null, view: now.shown.view, normed: now.normed,
      box: [top, bottom, left, right], height: bottom - top, width: right - left,
    }, "table").then((numbers) => { data.value = { key, numbers }; }).catch(() => undefined);
  }, [key]);
  if (!info || !words || !now) return null;
  const numbers = data.value?.key === key ? data.value.numbers : null;
  const wide = right - left;
  const masked = maskOf(info, now.layer, now.mean);
  /** A key that the mask hides has no weight. */
  const shownNumber = (r: number, c: number): string => {
    const weight = numbers?.[r * wide + c];
    if (weight === undefined) return "";
    return masked?.(words.rows[top + r], words.columns[left + c], weight) ? "–" : number(weight);
  };
  return (
    <div class="numbers" data-test="numbers" tabIndex={0}>
      <table>
        <caption>
          {say("table_caption", { what: title() })}
          {(wide < words.columns.length || bottom - top < words.rows.length) && ` · ${say("table_part", {
            from: top, to: bottom - 1, left, right: right - 1, rows: count(words.rows.length), columns: count(words.columns.length),
          })}`}
        </caption>
        <thead><tr><td />{words.columns.slice(left, right).map((label, n) => <th key={n} scope="col" title={label.text}><bdi>{marked(label)}</bdi></th>)}</tr></thead>
        <tbody>
          {words.rows.slice(top, bottom).map((label, r) => (
            <tr key={r}>
              <th scope="row" title={label.text}><bdi>{marked(label)}</bdi></th>
              {Array.from({ length: wide }, (_, c) => <td key={c}>{shownNumber(r, c)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
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
  return (
    <div class={gridTableOpen.value ? "gridtable panel" : "unseen"} data-test="grid-table" aria-busy={coming.value !== null} tabIndex={gridTableOpen.value ? 0 : undefined}>
      {gridTableOpen.value && <button class="closing" onClick={() => { gridTableOpen.value = false; }}>{say("close")}</button>}
      <table>
        <caption>{say("grid_caption", { what: statisticName(name) })}</caption>
        <thead><tr><td />{info.headNumbers[0].map((head, n) => <th key={n} scope="col">{sameHeads(info) ? head : n}</th>)}</tr></thead>
        <tbody>
          {info.layerNumbers.map((layer, l) => (
            <tr key={layer}>
              <th scope="row">{layer}</th>
              {info.headNumbers[l].map((_, h) => <td key={h}>{numbers ? number(numbers[l * info.heads + h]) : "–"}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
