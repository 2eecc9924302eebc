// A drawing of the model: components and their shares, the inside of a layer with the selected head's slice, shapes on every arrow.
import type { JSX } from "preact";
import { count, isWord, percent, say } from "../words";
import { at, doc } from "../state/store";
import { EmptyCentre } from "./centre";
import type { Anatomy as Model, Part } from "../trace/trace";

const shape = (sizes: (number | string)[]): string => (sizes.length === 1 ? `(${sizes[0]},)` : `(${sizes.join(", ")})`);

/** The meaning of a component in the reader's language; if the page has no translation, the text from Python. */
const meaning = ({ name, meaning: came }: Part): string => {
  const word = `means_${name}`;
  return isWord(word) ? say(word) : (came ?? "");
};

export function Anatomy() {
  const info = doc.value?.info;
  const model = info?.anatomy;
  if (!info) return null;
  if (!model) return <EmptyCentre>{say("anatomy_none")}</EmptyCentre>;
  const tokens = info.queries.tokens.length;
  return (
    <div class="centre" id="head">
      <section tabIndex={0} class="panel picture anatomy">
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
        <h2>{say("anatomy_layer", { l: info.layerNumbers[at.value.layer], n: model.sizes.layers })} <small class="quiet">{say("anatomy_same")}</small></h2>
        <div class="across" role="region" aria-label={say("pane_anatomy")} tabIndex={0}><Drawing model={model} tokens={tokens} head={info.headNumbers[at.value.layer][at.value.head]} /></div>
        <table class="components"><tbody>
          {model.layer.map((part) => <tr key={part.name}><th scope="row">{part.name.replace(/^.*?layers?\.0\./, "")}</th><td>{shape(part.shape ?? [])}</td><td>{count(part.count)}</td></tr>)}
        </tbody></table>
      </section>
    </div>
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

function Drawing({ model, tokens, head }: { model: Model; tokens: number; head: number }) {
  const { d_model: d, d_head: w, heads, d_ffn: f } = model.sizes;
  const colour = "var(--accent)";
  const [wide, narrow] = [shape([tokens, d]), shape([tokens, w])];
  const holder = (role: string): Part | undefined => model.layer.find((part) => part.role === role);
  const weights: [string, string, "rows" | "columns"][] = [
    ["W_Q", "layer.query.weight", "columns"], ["W_K", "layer.key.weight", "columns"], ["W_V", "layer.value.weight", "columns"],
  ];
  const side = 92;
  const slice = side / heads;
  const square = (x: number, y: number, name: string, along: "rows" | "columns", part: Part | undefined) => (
    <g key={name}>
      <rect class="weight" x={x} y={y} width={side} height={side} />
      {along === "columns"
        ? <rect x={x + head * slice} y={y} width={slice} height={side} fill={colour} />
        : <rect x={x} y={y + head * slice} width={side} height={slice} fill={colour} />}
      <Label most={side} x={x + side / 2} y={y - 6} text-anchor="middle" class="name">{name}</Label>
      <Label most={side} x={x + side / 2} y={y + side + 14} text-anchor="middle">{part ? shape([d, d]) : ""}</Label>
    </g>
  );
  const arrow = (x1: number, y1: number, x2: number, y2: number, label: string, side: "end" | "start" = "end") => (
    <g key={`${x1}/${y1}/${x2}/${y2}`} class="flow">
      <line class="arrow" x1={x1} y1={y1} x2={x2} y2={y2} marker-end="url(#tip)" />
      {x1 === x2
        ? <Label most={100} x={x1 + 8} y={(y1 + y2) / 2 + 4} class="shape">{label}</Label>
        : Math.abs(y2 - y1) > Math.abs(x2 - x1)
          ? <Label most={76} x={(x1 + x2) / 2 + (side === "end" ? -9 : 9)} y={(y1 + y2) / 2 + (side === "end" ? 4 : 12)} text-anchor={side} class="shape">{label}</Label>
          : <Label most={Math.abs(x2 - x1) + 4} x={(x1 + x2) / 2} y={(y1 + y2) / 2 - 6} text-anchor="middle" class="shape">{label}</Label>}
    </g>
  );
  return (
    <svg class="drawing" viewBox="0 -8 1010 478" role="img" aria-label={say("anatomy_slice", { head: "", h: head, d: w, m: d })}>
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" class="tip" /></marker></defs>
      <text x="14" y="222" class="name">X</text><Label most={62} x="14" y="238">{wide}</Label>
      {weights.map(([name, role, along], n) => square(150, 30 + n * 150, name, along, holder(role)))}
      {weights.map((_, n) => arrow(64, 218, 146, 76 + n * 150, wide))}
      {weights.map(([name], n) => (
        <g key={`head ${name}`}>
          {arrow(246, 76 + n * 150, 352, 76 + n * 150, narrow)}
          <rect x="356" y={46 + n * 150} width="20" height="60" fill={colour} />
          <text x="366" y={124 + n * 150} text-anchor="middle" class="name">{name.slice(-1).toLowerCase()}</text>
        </g>
      ))}
      {arrow(382, 76, 456, 130, narrow)}{arrow(382, 226, 456, 160, narrow)}
      <rect class="box" x="460" y="106" width="112" height="76" rx="4" />
      <Label most={104} x="516" y="138" text-anchor="middle" class="name">softmax</Label>
      <Label most={104} x="516" y="156" text-anchor="middle">q kᵀ / √{w}</Label>
      {arrow(516, 186, 516, 330, shape([tokens, tokens]))}{arrow(382, 376, 456, 368, narrow)}
      <rect class="box" x="460" y="336" width="112" height="60" rx="4" />
      <text x="516" y="364" text-anchor="middle" class="name">p v</text><Label most={104} x="516" y="382" text-anchor="middle">{narrow}</Label>
      {arrow(576, 366, 640, 366, narrow)}
      {square(644, 320, "W_O", "rows", holder("layer.attention_output.weight"))}
      {arrow(740, 366, 800, 300, wide, "start")}
      <Label most={300} x="690" y="452" text-anchor="middle">{say("anatomy_slice", { h: head, d: w, m: d })}</Label>
      <g>
        <rect class="box" x="804" y="262" width="150" height="44" rx="4" /><Label most={142} x="879" y="281" text-anchor="middle" class="name">{say("anatomy_add")} · {say("anatomy_norm")}</Label><Label most={142} x="879" y="297" text-anchor="middle">{wide}</Label>
        {arrow(879, 262, 879, 214, wide)}
        <rect class="box" x="804" y="132" width="150" height="78" rx="4" /><Label most={142} x="879" y="152" text-anchor="middle" class="name">{say("anatomy_ffn")}</Label>
        <Label most={142} x="879" y="172" text-anchor="middle">{wide} → {shape([tokens, f])}</Label><Label most={142} x="879" y="190" text-anchor="middle">→ {wide}</Label>
        {arrow(879, 132, 879, 84, wide)}
        <rect class="box" x="804" y="36" width="150" height="44" rx="4" /><Label most={142} x="879" y="55" text-anchor="middle" class="name">{say("anatomy_add")} · {say("anatomy_norm")}</Label><Label most={142} x="879" y="71" text-anchor="middle">{shape([tokens, d])}</Label>
        <g class="flow"><path class="arrow" d="M20 206V12H990V284H958" fill="none" marker-end="url(#tip)" /><text x="620" y="8" text-anchor="middle" class="shape">{wide}</text></g>
        <g class="flow"><path class="arrow" d="M800 284H780V58H800" fill="none" marker-end="url(#tip)" /><Label most={100} x="774" y="174" text-anchor="end" class="shape">{wide}</Label></g>
      </g>
    </svg>
  );
}
