// A statistic's colours: the ends of its scale, and a number's position on the colour maps.
import { css, divergingAt, inkOn, sequentialAt, type RGB } from "../drawing/colour";
import type { Statistic } from "./data";
import { scale } from "./state";

export interface Ends {
  low: number;
  high: number;
}

/** The ends of the colour scale over all heads, symmetric around 0 for signed numbers; null if no head has a value. */
export function endsOf({ mean, signed }: Statistic): Ends | null {
  const values = mean.filter((value) => value !== null);
  if (!values.length) return null;
  const [least, most] = [Math.min(...values), Math.max(...values)];
  if (signed) {
    const reach = Math.max(-least, most, 0);
    return { low: -reach, high: reach };
  }
  return { low: scale.value === "range" ? least : 0, high: most };
}

/** Custom properties of an element with class `shade`: its colours in light mode, in print, and in dark mode. */
type Shade = Record<"--day" | "--dayink" | "--night" | "--nightink", string>;

const shade = (day: RGB, night: RGB): Shade => ({ "--day": css(day), "--dayink": inkOn(day), "--night": css(night), "--nightink": inkOn(night) });

/** The shade at t, 0 to 1, between the ends of a scale. */
function shadeAt(t: number, signed: boolean): Shade {
  return signed ? shade(divergingAt(2 * t - 1, false), divergingAt(2 * t - 1, true)) : shade(sequentialAt(t, false), sequentialAt(t, true));
}

export const shadeOf = (value: number, { low, high }: Ends, signed: boolean): Shade => shadeAt(high === low ? 0.5 : (value - low) / (high - low), signed);

/** The whole scale from left to right, as a background. */
export function ramp(signed: boolean): Shade {
  const stops = Array.from({ length: 33 }, (_, n) => shadeAt(n / 32, signed));
  const along = (name: keyof Shade): string => `linear-gradient(to right, ${stops.map((stop) => stop[name]).join(", ")})`;
  return { "--day": along("--day"), "--dayink": "#000", "--night": along("--night"), "--nightink": "#fff" };
}

/** A layer's shade, without the faintest quarter of the map. */
export const layerShade = (at: number, layers: number): Shade => shadeAt(0.25 + (0.75 * at) / Math.max(1, layers - 1), false);
