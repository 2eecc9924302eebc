// The legend of a picture's colours.
import { divergingCss, onScale, sequentialCss } from "../colour";
import { mostOf, type Picture } from "../pictures";
import * as state from "../state";
import { say } from "../words";
import { end } from "./slots";

export function Legend({ picture }: { picture: Picture }) {
  const { signed } = picture;
  const most = mostOf(picture);
  const dark = state.dark.value;
  const scale = state.scale.value;
  const stops = Array.from({ length: 13 }, (_, n) => n / 12);
  const shades = stops.map((t) => {
    if (!signed) return sequentialCss(onScale(t * most, most, scale), dark);
    const value = 2 * t - 1;
    return divergingCss(Math.sign(value) * onScale(Math.abs(value), 1, scale), dark);
  });
  return (
    <div class="legend">
      <span>{signed ? end(-most) : "0"}</span>
      <div class="ramp" style={{ background: `linear-gradient(to right, ${shades.join(",")})` }} />
      {picture.ownMost === null
        ? <button class="plain" data-test="reach" title={say(`reach_${state.reach.value}`)}
            onClick={() => { state.reach.value = state.reach.value === "one" ? "head" : "one"; }}>{end(most)}</button>
        : <span>{end(most)}</span>}
      <button class="plain" title={say("scale")} onClick={() => { state.scale.value = state.SCALES[(state.SCALES.indexOf(scale) + 1) % 3]; }}>
        {say(`scale_${scale}`)}
      </button>
    </div>
  );
}
