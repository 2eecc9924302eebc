// Numbers that belong to heads: those of the file, and those that depend on what is selected or compared.
import { computed } from "@preact/signals";
import { at, doc, otherDoc } from "./store";
import type { TraceInfo } from "./trace/trace";

/** A head whose mean entropy is above this share of log S is called near-uniform, as headscope.verify does. */
export const UNIFORM = 0.98;

export const NAMES = ["entropy", "previous", "next", "same", "first", "separator", "distance", "strongest"] as const;

function thumb(info: TraceInfo, layer: number, head: number): Float32Array | null {
  if (!info.thumbs) return null;
  const cells = info.thumbs.rows * info.thumbs.columns;
  const from = (layer * info.heads + head) * cells;
  return Float32Array.from(info.thumbs.data.subarray(from, from + cells), (byte) => (byte / 255) ** 2);
}

/** Cosine between thumbnails: 1 for the same picture. */
function similarities(info: TraceInfo, layer: number, head: number): Float32Array | null {
  const mine = thumb(info, layer, head);
  if (!mine) return null;
  const norm = (x: Float32Array): number => Math.sqrt(x.reduce((sum, n) => sum + n * n, 0)) || 1;
  return Float32Array.from({ length: info.layers.length * info.heads }, (_, n) => {
    const theirs = thumb(info, Math.floor(n / info.heads), n % info.heads)!;
    let sum = 0;
    for (let cell = 0; cell < mine.length; cell++) sum += mine[cell] * theirs[cell];
    return sum / (norm(mine) * norm(theirs));
  });
}

/** Half the mean over rows of the summed differences between two traces' thumbnails; exact up to 48 tokens. */
export function changes(a: TraceInfo, b: TraceInfo): Float32Array | null {
  if (!a.thumbs || !b.thumbs || a.heads !== b.heads || a.layers.length !== b.layers.length) return null;
  if (a.thumbs.rows !== b.thumbs.rows || a.thumbs.columns !== b.thumbs.columns) return null;
  const { rows, columns } = a.thumbs;
  const cells = rows * columns;
  return Float32Array.from({ length: a.layers.length * a.heads }, (_, n) => {
    let sum = 0;
    for (let cell = n * cells; cell < (n + 1) * cells; cell++) {
      sum += Math.abs((a.thumbs!.data[cell] / 255) ** 2 - (b.thumbs!.data[cell] / 255) ** 2);
    }
    return sum / (2 * rows);
  });
}

/** (layers * heads) numbers by name; null where they are not to be had. */
export const table = computed<Record<string, Float32Array> | null>(() => {
  const info = doc.value?.info;
  if (!info) return null;
  const found: Record<string, Float32Array> = { ...(info.statistics ?? {}) };
  const alike = similarities(info, at.value.layer, at.value.head);
  if (alike) found.similarity = alike;
  const changed = otherDoc.value && changes(info, otherDoc.value.info);
  if (changed) found.change = changed;
  return found;
});

export const isUniform = (info: TraceInfo, n: number): boolean => {
  const entropy = info.statistics?.entropy?.[n];
  return entropy !== undefined && info.keys.tokens.length > 1 && entropy > UNIFORM * Math.log(info.keys.tokens.length);
};
