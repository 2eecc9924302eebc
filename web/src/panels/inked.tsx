// A text with ink behind its tokens, a number each, and the numbers of the strongest.
import { undotted } from "../text/shown";
import type { Doc } from "../state/store";
import { isolated, leftToRight, number } from "../words";
import { signed } from "../model/ask";

/** Numbers from this share of the largest on are written beside their tokens. */
const WRITTEN = 0.15;
/** The most ink, so that the text on it can be read. */
const FULL = 48;

export function Inked({ info, values, sign, test }: { info: Doc["info"]; values: number[]; sign: boolean; test: string }) {
  const { labels, special } = info.queries;
  const most = Math.max(...values.map(Math.abs), 1e-12);
  return (
    <p class="ascribed" data-test={test}>
      {values.map((value, place) => {
        const share = Math.abs(value) / most;
        const goesOn = labels[place]?.startsWith("·");
        const figure = sign ? signed(value) : number(value);
        return [
          goesOn ? "" : " ",
          <span key={place} class={special[place] ? "special" : ""} title={leftToRight(`${place}: ${isolated(info.queries.tokens[place])} ${figure}`)} data-value={value}
            style={{ background: `color-mix(in oklab, var(${value < 0 ? "--less" : "--more"}) ${(FULL * share).toFixed(1)}%, transparent)` }}>
            <bdi>{undotted(labels[place] ?? "")}</bdi>{share >= WRITTEN && <sup>{figure}</sup>}
          </span>,
        ];
      })}
    </p>
  );
}
