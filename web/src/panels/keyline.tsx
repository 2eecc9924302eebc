// A key in a ranking: its name, a bar for each of its weights, and what is said of them; a click pins it.
import type { ComponentChildren } from "preact";
import * as state from "../state/state";
import { column, lookedRow, row, shown } from "../state/store";
import type { Label } from "../text/shown";
import { Fill } from "./controls";
import { Name } from "./name";

interface Props {
  label: Label;
  /** The key's column; -1 where this text has none. */
  c: number;
  weight?: number;
  /** Lengths of its bars, 0 to 1. */
  shares: number[];
  cut?: boolean;
  children: ComponentChildren;
}

export const KeyLine = ({ label, c, weight, shares, cut, children }: Props) => (
  <li class={`${c >= 0 && column.value === c ? "chosen" : ""}${cut ? " cut" : ""}`} title={label.title} data-column={c} data-weight={weight}
    onPointerEnter={() => { if (c >= 0) state.hoverColumn.value = c; }} onPointerLeave={() => { state.hoverColumn.value = null; }}
    onClick={() => {
      if (c < 0) return;
      if (row.value === null && lookedRow.value !== null) state.query.value = shown.value!.rows[lookedRow.value].tokens[0];
      state.key.value = shown.value!.columns[c].tokens[0];
    }}>
    <Name label={label} />
    <span class="bar">{shares.map((share, n) => <Fill key={n} share={share} />)}</span>
    <b>{children}</b>
  </li>
);
