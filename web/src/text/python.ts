// What is pinned, as lines of Python that give the same numbers.
import { mean } from "../heads/several";
import { partner, slotB } from "../state/comparing";
import { at, column, doc, headName, row, shown, type Doc } from "../state/store";
import * as state from "../state/state";
import type { Label } from "./shown";

/** As Python writes a text. */
const quoted = (text: string): string => JSON.stringify(text).replace(/[\u007f-\uffff]/g, (letter) => (/[\p{L}\p{N}\p{P}\p{S}]/u.test(letter) ? letter : `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`));

const opened = (name: string, { info: { model, text, pair, ablated, queries } }: Doc): string =>
  `${name} = hs.open(${quoted(model)}).trace(${[
    text === null ? `ids=[${queries.ids.join(", ")}]` : quoted(text), ...(pair === null ? [] : [quoted(pair)]),
    ...(ablated.length ? [`ablate=[${ablated.map(([l, h]) => `(${l}, ${h})`).join(", ")}]`] : []),
  ].join(", ")})`;

/** A head's weights, those of a query, or one: a word's pieces are summed as keys and averaged as queries. */
function weights(name: string, query: Label | undefined, key: Label | undefined): string {
  const [rows, columns] = [query?.tokens ?? [], key?.tokens ?? []];
  if (rows.length > 1 || columns.length > 1) return `${name}.weights[${rows.length ? `[${rows.join(", ")}]` : ":"}]${columns.length ? `[:, [${columns.join(", ")}]].sum(1)` : ""}${rows.length ? ".mean(0)" : ""}`;
  return `${name}.weights${rows.length || columns.length ? `[${rows[0] ?? ":"}${columns.length ? `, ${columns[0]}` : ""}]` : ""}`;
}

/** The lines; of a comparison the difference B − A. */
export function inPython(): string {
  const [a, words, b] = [doc.value!, shown.value!, state.pane.value === "compare" ? slotB.value : null];
  const cell = (name: string): string => weights(name, words.rows[row.value ?? -1], words.columns[column.value ?? -1]);
  const { l, h } = headName(a.info, at.value);
  const heads = mean.value?.map(([layer, head]) => `(${headName(a.info, { layer, head }).l}, ${headName(a.info, { layer, head }).h})`);
  const lines = ["import headscope as hs", "", opened("trace", a)];
  if (b) {
    const other = headName(b.doc.info, b);
    const [i, j] = [partner("rows", row.value), partner("columns", column.value)];
    lines.push(opened("other", b.doc), `${weights(`other[${other.l}, ${other.h}]`, b.shown.rows[i], b.shown.columns[j])} - ${cell(`trace[${l}, ${h}]`)}`);
  } else lines.push(heads ? `sum(${cell("trace[head]")} for head in [${heads.join(", ")}]) / ${heads.length}` : cell(`trace[${l}, ${h}]`));
  return lines.join("\n");
}
