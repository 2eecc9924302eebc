// What an exported picture or table shows, in words and as data: model, text, head, pinned cell, settings.
import { maskOf } from "../text/masking";
import { cellAt, mostOf, wanted, type Picture, type Window } from "./pictures";
import { end } from "../panels/slots";
import { mean, title } from "../heads/several";
import * as state from "../state/state";
import { at, column, doc, headName, row, shown, wholeText } from "../state/store";
import type { TraceInfo } from "../trace/trace";
import { count, number, percent, say } from "../words";

/** The weight of the pinned cell as the picture shows it; null where none is pinned or the mask hides it. */
async function pinnedWeight(): Promise<number | null> {
  const [now, r, c] = [wanted.value, row.value, column.value];
  if (!now || r === null || c === null) return null;
  const weight = await cellAt(now, r, c);
  return maskOf(now)?.(now.shown.rows[r], now.shown.columns[c], weight) ? null : weight;
}

/** What was hidden, joined or weighted. */
export const remarks = (): string[] => {
  const words = shown.value;
  return [
    words?.renormalised && say("renormalised"), words?.partial && say("partial"),
    state.merged.value && say("merged_note"), wanted.value?.normed && say("normed_note"),
  ].filter((note) => typeof note === "string");
};

/** Its text, if that is known. */
export const textOf = (info: TraceInfo): string[] => (info.text === null ? [] : [say("figure_text", { all: wholeText(info)! })]);

export interface Caption {
  title: string;
  /** The text comes last. */
  sentences: string[];
}

/** Which rows and columns a part has; nothing of the whole. */
export function partOf([top, bottom, left, right]: Window): string[] {
  const [{ length: rows }, { length: columns }] = [shown.value!.rows, shown.value!.columns];
  return bottom - top === rows && right - left === columns ? [] : [say("table_part", { from: top, to: bottom - 1, left, right: right - 1, rows: count(rows), columns: count(columns) })];
}

/** What is in view, all of it where no part is given; without the pinned cell where its weight isn't known. */
export function sentencesOf(picture: Picture, part?: Window, weight?: number | null): string[] {
  const words = shown.value!;
  const { info } = doc.value!;
  const [r, c] = [row.value, column.value];
  const [query, key] = [r === null ? null : words.rows[r], c === null ? null : words.columns[c]];
  const places = { i: query?.tokens.join("+") ?? "", j: key?.tokens.join("+") ?? "" };
  const notes = remarks();
  if (state.filter.value !== "all") notes.unshift(say(`filter_${state.filter.value}`));
  if (info.broken.has(at.value.n)) notes.push(say("broken_says"));
  return [
    mean.value ? `${title()}, ${info.name}: ${say("mean_note")}.` : say("figure_what", { ...headName(info, at.value), model: info.name }),
    query && key && weight !== undefined && say("figure_cell", { token: query.text, text: key.text, ...places, weight: weight === null ? "–" : number(weight) }),
    query && !key && say("figure_query", { token: query.text, ...places }),
    key && !query && say("figure_key", { token: key.text, ...places }),
    say("figure_colours", { scale: say(`scale_${state.scale.value}`), most: end(mostOf(picture)) }),
    (state.mode.value === "lines" || (part && state.mode.value === "both")) && say("figure_lines", { share: percent(state.mass.value) }),
    maskOf(wanted.value!) && say("figure_masked"),
    ...(part ? partOf(part) : []),
    notes.length > 0 && `(${notes.join("; ")})`,
    // last, because a figure cuts what is too long
    ...textOf(info),
  ].filter((sentence) => typeof sentence === "string");
}

/** The caption of the part of the head that is in view. */
export async function captionOf(picture: Picture, part: Window): Promise<Caption> {
  return { title: `${doc.value!.info.name} · ${title()}`, sentences: sentencesOf(picture, part, await pinnedWeight()) };
}
