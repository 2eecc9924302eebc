// Formatting of numbers.
import { spoken } from "./speech";

export const count = (n: number): string => n.toLocaleString(spoken.value);

/** A number as people write it, below 0 with a minus sign, not a hyphen. */
export const written = (text: string): string => text.replaceAll("-", "−");

/** A number in a text, with three decimals; a smaller one with two digits. In pictures, numbers are short (panels/slots.ts). */
export function number(value: number, digits = 3): string {
  if (!Number.isFinite(value)) return value === -Infinity ? "−∞" : value === Infinity ? "∞" : "–";
  const size = Math.abs(value);
  if (value && size < 1e-7) return written(value.toExponential(1));
  return written(value.toFixed(size >= 100 ? 1 : value && size < 0.5 * 10 ** -digits ? 1 - Math.floor(Math.log10(size)) : digits));
}

/** A number in a column: three decimals below 10, fewer above; a dash for null. As in headscope.atlas.wording, but for the minus. */
export function rounded(value: number | null): string {
  if (value === null) return "–";
  const size = Math.abs(value);
  return written(value.toFixed(size < 10 ? 3 : size < 100 ? 2 : size < 1000 ? 1 : 0));
}

export const percent = (share: number): string => written(`${(100 * share).toFixed(Math.abs(share) < 0.1 ? 1 : 0)}%`);
