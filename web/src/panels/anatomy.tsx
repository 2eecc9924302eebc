// A drawing of the model: components and their shares, the inside of a layer with the selected head's slice, shapes on every arrow.
import type { JSX } from "preact";
import { count, isWord, percent, say } from "../words";
import { at, doc } from "../state/store";
import { Centre, EmptyCentre } from "./controls";
import type { Anatomy as Model, Part } from "../trace/trace";

const shape = (sizes: (number | string)[]): string => (sizes.length === 1 ? `(${sizes[0]},)` : `(${sizes.join(", ")})`);

/** The meaning of a component in the reader's language; if the page has no translation, the text from Python. */
const meaning = ({ name, meaning: came }: Part): string => {
  const word = `means_${name}`;
  return isWord(word) ? say(word) : (came ?? "");
};

export function Anatomy() {
  const { info } = doc.value!;
  const model = info.anatomy;
  if (!model) return <EmptyCentre>{say("anatomy_none")}</EmptyCentre>;
  const layer = info.layerNumbers[at.value.layer];
  const kind = model.kinds[model.layers[layer]];
  return (
    <Centre pane="picture anatomy" tabIndex={0}>
      <div class="row spread">
        <h1>{say("anatomy_total", { name: model.class, n: count(model.total) })}</h1>
        {model.extra > 0 && <span class="quiet">{say("anatomy_extra", { n: count(model.extra) })}</span>}
      </div>
      <div class="shares" role="img" aria-label={model.components.map((part) => `${part.name} ${percent(part.share ?? 0)}`).join(", ")}>
        {model.components.map((part, n) => <i key={part.name} class={`c${n % 4}`} style={{ flexGrow: Math.max(0.004, part.share ?? 0) }} title={part.name} />)}
      </div>
      <table class="components"><tbody>
        {model.components.map((part, n) => (
          <tr key={part.name}><td><i class={`dot c${n % 4}`} /></td><th scope="row">{part.name}</th><td>{count(part.count)}</td><td>{say("anatomy_share", { share: percent(part.share ?? 0) })}</td><td class="quiet">{meaning(part)}</td></tr>
        ))}
      </tbody></table>
      <h2>{say("anatomy_layer", { l: layer, n: model.sizes.layers })} {!model.kinds[1] && <small>{say("anatomy_same")}</small>}</h2>
      <div class="across" role="region" aria-label={say("pane_anatomy")} tabIndex={0}><Drawing {...{ model, kind }} tokens={info.queries.tokens.length} head={info.headNumbers[at.value.layer][at.value.head]} /></div>
      <table class="components"><tbody>
        {kind.rows.map((part) => <tr key={part.name}><th scope="row">{part.name}</th><td>{shape(part.shape ?? [])}</td><td>{count(part.count)}</td></tr>)}
      </tbody></table>
    </Centre>
  );
}

/** Text of the drawing, condensed if the reader's font is wider than its space. */
function Label({ most, children, ...rest }: { most: number } & JSX.SVGAttributes<SVGTextElement>) {
  const fit = (text: SVGTextElement | null): void => {
    if (!text) return;
    text.removeAttribute("textLength");
    if (text.getComputedTextLength() > most) text.setAttribute("textLength", String(most));
  };
  return <text ref={fit} lengthAdjust="spacingAndGlyphs" {...rest}>{children}</text>;
}

/** A step: its name and what comes out, one line below the other. */
const Box = ({ x, y, width, height, lines }: { x: number; y: number; width: number; height: number; lines: string[] }) => (
  <>
    <rect class="box" x={x} y={y} width={width} height={height} rx="4" />
    {lines.map((line, n) => <Label most={width - 8} x={x + width / 2} y={y + height / 2 + 18 * n - 9 * lines.length + 13} class={n ? "" : "name"}>{line}</Label>)}
  </>
);

function Drawing({ model, kind, tokens, head }: { model: Model; kind: Model["kinds"][0]; tokens: number; head: number }) {
  const { d_model: d, d_head: w, d_heads: wq, d_keys: wk, heads, kv_heads: keyHeads, d_ffn: f } = model.sizes;
  const colour = "var(--accent)";
  const [wide, narrow] = [shape([tokens, d]), shape([tokens, w])];
  const side = 92;
  /** A weight, and the head's slice of its rows or columns: one of so many. */
  const square = (x: number, y: number, name: string, sizes: number[], of: number, rows = false) => {
    const [slice, from] = [side / of, Math.floor((head * of) / heads) * (side / of)];
    return (
      <g key={name}>
        <rect class="weight" x={x} y={y} width={side} height={side} />
        <rect x={rows ? x : x + from} y={rows ? y + from : y} width={rows ? side : slice} height={rows ? slice : side} fill={colour} />
        <Label most={side} x={x + side / 2} y={y - 6} class="name">{name}</Label>
        <Label most={side} x={x + side / 2} y={y + side + 14}>{shape(sizes)}</Label>
      </g>
    );
  };
  const arrow = (x1: number, y1: number, x2: number, y2: number, label: string, anchor: "end" | "start" = "end") => {
    const [x, y, across, down] = [(x1 + x2) / 2, (y1 + y2) / 2, Math.abs(x2 - x1), Math.abs(y2 - y1)];
    const place = !across ? { most: 100, x: x + 8, y: y + 4, "text-anchor": "start" } as const
      : down <= across ? { most: across + 4, x, y: y - 6 }
      : { most: 76, x: x + (anchor === "end" ? -9 : 9), y: y + (anchor === "end" ? 4 : 12), "text-anchor": anchor };
    return (
      <g key={`${x1}/${y1}/${x2}/${y2}`} class="flow">
        <line class="arrow" x1={x1} y1={y1} x2={x2} y2={y2} marker-end="url(#tip)" />
        <Label {...place} class="shape">{label}</Label>
      </g>
    );
  };
  const coloured = say("anatomy_slice", { h: head, d: w, m: wq });
  const sum = say("anatomy_add") + (model.first ? "" : ` · ${model.norm}`);
  return (
    <svg class="drawing" viewBox="0 -8 1010 478" role="img" aria-label={coloured}>
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" class="tip" /></marker></defs>
      <text x="14" y="222" text-anchor="start" class="name">X</text><Label most={62} x="14" y="238" text-anchor="start">{wide}</Label>
      {kind.before && <Label most={62} x="14" y="256" text-anchor="start">{model.norm}</Label>}
      {["W_Q", "W_K", "W_V"].map((name, n) => (
        <g key={name}>
          {square(150, 30 + n * 150, name, [d, n ? wk : wq], n ? keyHeads : heads)}
          {arrow(64, 218, 146, 76 + n * 150, wide)}
          {arrow(246, 76 + n * 150, 352, 76 + n * 150, narrow)}
          <rect x="356" y={46 + n * 150} width="20" height="60" fill={colour} />
          <text x="366" y={124 + n * 150} class="name">{name.slice(-1).toLowerCase()}</text>
        </g>
      ))}
      {arrow(382, 76, 456, 130, narrow)}{arrow(382, 226, 456, 160, narrow)}
      <Box x={460} y={106} width={112} height={76} lines={["softmax", `q kᵀ / √${model.divisor}${model.distances ? " + D" : ""}`, ...(kind.rotates ? [say("anatomy_rotated")] : model.distances ? [say("anatomy_distance")] : [])]} />
      {arrow(516, 186, 516, 330, shape([tokens, tokens]))}{arrow(382, 376, 456, 368, narrow)}
      <Box x={460} y={336} width={112} height={60} lines={["p v", narrow]} />
      {arrow(576, 366, 640, 366, narrow)}
      {square(644, 320, "W_O", [wq, d], heads, true)}
      {arrow(740, 366, 800, 300, wide, "start")}
      <Label most={300} x="690" y="452">{coloured}</Label>
      <Box x={804} y={262} width={150} height={44} lines={[sum, wide]} />
      {arrow(879, 262, 879, 214, wide)}
      <Box x={804} y={132} width={150} height={78} lines={[(model.first ? `${model.norm} · ` : "") + say("anatomy_ffn"), `${wide} → ${shape([tokens, f])}`, `→ ${wide}`]} />
      {arrow(879, 132, 879, 84, wide)}
      <Box x={804} y={36} width={150} height={44} lines={[sum, wide]} />
      <g class="flow"><path class="arrow" d="M20 206V12H990V284H958" fill="none" marker-end="url(#tip)" /><text x="620" y="8" class="shape">{wide}</text></g>
      <g class="flow"><path class="arrow" d="M800 284H780V58H800" fill="none" marker-end="url(#tip)" /><Label most={100} x="774" y="174" text-anchor="end" class="shape">{wide}</Label></g>
    </svg>
  );
}
