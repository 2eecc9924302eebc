// Colours: one sequential map for weights, one diverging map for differences, one hue for each of several heads.

export type RGB = [number, number, number];

/** Colour of NaN, which is on neither map. */
const BROKEN: RGB = [214, 0, 60];

/** The end of the colours of a difference, in the matrix and in all tiles. */
export const MOVED = 0.5;

export const css = ([r, g, b]: RGB): string => `rgb(${r} ${g} ${b})`;

type Stops = [at: number, colour: RGB][];

/** The map at these square roots of weights: 0 is the pane's own colour, and a weight below .05 still looks like paper. */
const STOPS: Record<"light" | "dark", Stops> = {
  light: [[0, [255, 255, 255]], [0.15, [238, 244, 251]], [0.3, [205, 224, 246]], [0.52, [126, 174, 230]], [0.78, [47, 98, 181]], [1, [19, 34, 61]]],
  dark: [[0, [16, 19, 24]], [0.15, [22, 32, 47]], [0.3, [29, 53, 87]], [0.52, [47, 102, 176]], [0.78, [111, 178, 245]], [1, [230, 243, 255]]],
};

/** The one rule of signs: more, above 0, is green; less, below 0, is purple. base.css has the same as --more and --less. */
export const SIGN: Record<"light" | "dark", { more: RGB; less: RGB }> = {
  light: { more: [0, 128, 74], less: [138, 63, 157] },
  dark: { more: [91, 214, 156], less: [217, 154, 240] },
};

const themed = (dark: boolean) => (dark ? "dark" : "light");

function mixed(stops: Stops, t: number): RGB {
  const next = Math.max(1, stops.findIndex(([at]) => t <= at));
  const [[from, a], [to, b]] = [stops[next - 1], stops[next]];
  return a.map((byte, n) => Math.round(byte + ((t - from) / (to - from)) * (b[n] - byte))) as RGB;
}

const cached = <T,>(make: (signed: boolean, dark: boolean) => T) => {
  const made: T[] = [];
  return (signed: boolean, dark: boolean): T => (made[2 * Number(signed) + Number(dark)] ??= make(signed, dark));
};

/**
 * Of weights, 256 colours from the pane's own to the strongest, so that they work in grey, too. Of signed numbers, 511 from less through
 * the pane's own (0) to more: neither is the colour of weights, nor that of the selection.
 */
export const coloursOf = cached((signed, dark): RGB[] => {
  const [stops, { more, less }] = [STOPS[themed(dark)], SIGN[themed(dark)]];
  return Array.from({ length: signed ? 511 : 256 }, (_, n) => (signed ? mixed([[0, stops[0][1]], [1, n < 255 ? less : more]], Math.abs(n - 255) / 255) : mixed(stops, n / 255)));
});

/** A weight's colour at t, 0 to 1. */
export const sequentialAt = (t: number, dark: boolean): RGB => coloursOf(false, dark)[Math.round(255 * Math.min(1, Math.max(0, t)))] ?? BROKEN;

/** A signed number's colour at t, -1 to 1. */
export const divergingAt = (t: number, dark: boolean): RGB => coloursOf(true, dark)[255 + Math.round(255 * Math.min(1, Math.max(-1, t)))] ?? BROKEN;

/** Relative luminance, 0 to 1 (WCAG 2.2). */
export function luminance(colour: RGB): number {
  const [r, g, b] = colour.map((byte) => (byte / 255 <= 0.04045 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Black or white, whichever has more contrast on this colour. */
export const inkOn = (colour: RGB): string => (luminance(colour) > 0.179 ? "#000" : "#fff");

/** This colour as a ground, and ink that can be read on it. */
export const grounded = (colour: RGB) => ({ background: css(colour), color: inkOn(colour) });

/** A head's colour: equal lightness, and hues spread over the whole circle, so that all differ; in numbers that every program reads. */
export function headColour(head: number, heads: number, dark: boolean): string {
  const pen = new OffscreenCanvas(1, 1).getContext("2d")!;
  pen.fillStyle = `oklch(${dark ? 0.78 : 0.52} 0.13 ${20 + (360 * head) / heads})`;
  pen.fillRect(0, 0, 1, 1);
  const [r, g, b] = pen.getImageData(0, 0, 1, 1).data;
  return css([r, g, b]);
}

/** Position of a weight on the map, 0 to 1. Log covers four decades. */
export function onScale(weight: number, most: number, scale: "sqrt" | "linear" | "log"): number {
  const t = most > 0 ? Math.min(1, Math.max(0, weight / most)) : 0;
  if (scale === "linear") return t;
  if (scale === "sqrt") return Math.sqrt(t);
  return t <= 1e-4 ? 0 : 1 + Math.log10(t) / 4;
}

/** A number's colour where the scale ends at `most`: a signed one's by its size and its sign. */
export function colourOf(value: number, most: number, scale: "sqrt" | "linear" | "log", dark: boolean, signed: boolean): RGB {
  const t = onScale(Math.abs(value), most, scale);
  return signed ? divergingAt(Math.sign(value) * t, dark) : sequentialAt(t, dark);
}

const pixel = ([r, g, b]: RGB): number => 0xff000000 + (b << 16) + (g << 8) + r;

/** The colours as pixels of a canvas: opaque, red in the lowest byte. */
export const palette = cached((signed, dark) => Uint32Array.from(coloursOf(signed, dark), pixel));

/** Numbers as pixels; signed numbers use the diverging map. */
export function paint(
  data: Float32Array, most: number, scale: "sqrt" | "linear" | "log", dark: boolean, signed: boolean,
): Uint8ClampedArray<ArrayBuffer> {
  const out = new Uint32Array(data.length);
  const colours = palette(signed, dark);
  const broken = pixel(BROKEN);
  for (let n = 0; n < data.length; n++) {
    const value = data[n];
    const shade = Math.round(255 * onScale(Math.abs(value), most, scale));
    out[n] = Number.isNaN(value) ? broken : colours[signed ? 255 + Math.sign(value) * shade : shade];
  }
  return new Uint8ClampedArray(out.buffer);
}
