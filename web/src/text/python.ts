// What is pinned, as lines of Python that give the same numbers.
import { mean } from "../heads/several";
import { partner, slotB } from "../state/comparing";
import { at, column, doc, headName, row, shown, type Doc } from "../state/store";
import { toShare } from "../state/hash";
import * as state from "../state/state";
import { say } from "../words";
import type { Label } from "./shown";

/** As Python writes a text; what can't be seen by its number. */
const quoted = (text: string): string =>
  JSON.stringify(text).replace(/(?! )[\p{C}\p{Z}]/gu, (letter) => `\\U${letter.codePointAt(0)!.toString(16).padStart(8, "0")}`);

/** How a trace is made again; where a run, a hook or a decoder had a part in it, that it has to be at hand. */
function made(name: string, { of, info: { model, text, pair, ablated, stack, notes } }: Doc): string {
  if (of || notes.length || stack !== "self" || text === null) return `# ${name}: ${say("python_own")}`;
  const words = [text, ...(pair === null ? [] : [pair])].map(quoted);
  if (ablated.length) words.push(`ablate=[${ablated.map((head) => `(${head.join(", ")})`).join(", ")}]`);
  return `${name} = hs.open(${quoted(model)}).trace(${words.join(", ")})`;
}

/** A head's weights, those of a query, or one: a word's pieces are summed as keys and averaged as queries. */
function weights(name: string, query: Label | undefined, key: Label | undefined): string {
  const [rows, columns] = [query?.tokens ?? [], key?.tokens ?? []];
  if (rows.length > 1 || columns.length > 1) return `${name}.weights[${rows.length ? `[${rows.join(", ")}]` : ":"}]${columns.length ? `[:, [${columns.join(", ")}]].sum(1)` : ""}${rows.length ? ".mean(0)" : ""}`;
  return `${name}.weights${rows.length || columns.length ? `[${rows[0] ?? ":"}${columns.length ? `, ${columns[0]}` : ""}]` : ""}`;
}

/** The command that opens what is on the screen; false where its text alone doesn't make it, or would be read as an option or as nothing. */
export function inShell(): string | false {
  const [{ model, text, pair, ablated }, open] = [doc.value!.info, toShare(state.FIELDS)];
  const words = [model, text!, ...(pair === null ? [] : ["--pair", pair]), ...(open && ["--open", open])];
  return !ablated.length && /^[^-]/.test(text ?? "") && made("", doc.value!)[0] !== "#" && `headscope view ${words.map((word) => (/[^\w./@-]/.test(word) ? `'${word.replaceAll("'", "'\\''")}'` : word)).join(" ")}`;
}

/** The lines; of a comparison the difference B − A. */
export function inPython(): string {
  const [a, words, b] = [doc.value!, shown.value!, state.pane.value === "compare" ? slotB.value : null];
  const cell = (name: string): string => weights(name, words.rows[row.value ?? -1], words.columns[column.value ?? -1]);
  const { l, h } = headName(a.info, at.value);
  const heads = mean.value?.map(([layer, head]) => `(${headName(a.info, { layer, head }).l}, ${headName(a.info, { layer, head }).h})`);
  const own = heads ? `sum(${cell("trace[head]")} for head in [${heads.join(", ")}]) / ${heads.length}` : cell(`trace[${l}, ${h}]`);
  const lines = ["import headscope as hs", "", made("trace", a)];
  if (b) {
    const other = headName(b.doc.info, b);
    const [i, j] = [partner("rows", row.value), partner("columns", column.value)];
    lines.push(made("other", b.doc), `${weights(`other[${other.l}, ${other.h}]`, b.shown.rows[i], b.shown.columns[j])} - ${own}`);
  } else if (state.pane.value === "follow") lines.push(`trace.follow(${words.rows[row.value ?? -1]?.tokens[0] ?? ""})`);
  else lines.push(own);
  return lines.join("\n");
}
