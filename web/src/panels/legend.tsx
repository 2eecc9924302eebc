// The legend of a picture's colours.
import { colourOf, css, type RGB } from "../drawing/colour";
import { mostOf, type Picture } from "../drawing/pictures";
import * as state from "../state/state";
import { say } from "../words";
import { end } from "./slots";

/** The colours of the numbers from one end to the other. */
export const Ramp = ({ low, high, shade }: { low: number; high: number; shade: (value: number) => RGB }) => (
  <i class="ramp" style={{ background: `linear-gradient(to right, ${Array.from({ length: 13 }, (_, n) => css(shade(low + ((high - low) * n) / 12))).join(",")})` }} />
);

export function Legend({ picture }: { picture: Picture }) {
  const { signed } = picture;
  const most = mostOf(picture);
  const scale = state.scale.value;
  const low = signed ? -most : 0;
  return (
    <div class="legend">
      <span>{end(low)}</span>
      <Ramp low={low} high={most} shade={(value) => colourOf(value, most, scale, state.dark.value, signed)} />
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
