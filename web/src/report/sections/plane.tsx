// The heads on a plane, coloured by layer and labelled: similar heads are close together.
import { count } from "../../words/numbers";
import { headLabel, type Plane, type Survey } from "../data";
import { layerShade } from "../shades";
import { say, tongueOf, translated } from "../words";

/** The legend of layers on the right. */
const KEY = 110;

export function PlaneFigure({ survey, plane }: { survey: Survey; plane: Plane }) {
  const { layers, heads } = survey;
  const { width, height, unit } = plane;
  const foot = height - 12;
  const key = width - 150;
  return (
    <figure>
      <h3 lang={tongueOf(plane.title)}>{translated(plane.title)}</h3>
      <div class="across" role="region" aria-label={say("plane")} tabIndex={0}>
        <svg class="plane" viewBox={`0 0 ${width} ${height}`} role="img" aria-label={say("plane")} data-test="plane">
          {plane.heads.map(({ cell, leader }) => leader && <line key={cell} class="leader" x1={leader[0]} y1={leader[1]} x2={leader[2]} y2={leader[3]} />)}
          {plane.heads.map(({ cell, x, y, name }) => (
            <g key={cell}>
              <circle class="head shade" style={layerShade(Math.floor(cell / heads.length), layers.length)} cx={x} cy={y} r={plane.radius} data-cell={cell}>
                <title>{say("head", { head: headLabel(survey, cell) })}</title>
              </circle>
              {name && <text class="name" style={{ fontSize: plane.letters }} x={name[0]} y={name[1] + 0.36 * plane.letters}>{headLabel(survey, cell)}</text>}
            </g>
          ))}
          <line class="unit" x1={20} x2={20 + unit.length} y1={foot} y2={foot} />
          <text class="tick start" x={26 + unit.length} y={foot + 3.5}>{say("distance", { n: unit.distance })}</text>
          {layers.map((layer, row) => (
            <rect key={layer} class="shade" style={layerShade(row, layers.length)} x={key + (KEY * row) / layers.length} y={foot - 5} width={KEY / layers.length + 0.3} height={9} />
          ))}
          <text class="tick end" x={key - 5} y={foot + 3.5}>{say("layer")} {layers[0]}</text>
          <text class="tick start" x={key + KEY + 5} y={foot + 3.5}>{layers[layers.length - 1]}</text>
        </svg>
      </div>
      <figcaption>{say("plane_key", {
        windows: say("n_windows", { n: count(plane.windows) }), share: `${(100 * plane.kept).toFixed(0)}%`, source: plane.source,
      })}</figcaption>
    </figure>
  );
}
