// The bar on top of every page of the site: the model, the way home, and on a head's page the heads around it.
import { Settings } from "../../panels/settings";
import { count } from "../../words/numbers";
import { headLabel, type Survey } from "../data";
import { groupOf } from "../kinds";
import { headHref, homeHref } from "../links";
import { say } from "../words";

export function Header({ survey, cell }: { survey: Survey; cell: number | null }) {
  const { model, corpus, counts } = survey;
  const [layer, head] = cell === null ? ["", ""] : headLabel(survey, cell).split(".");
  const at = cell === null ? -1 : survey.named.indexOf(cell);
  const step = (to: number, sign: string, word: "previous_head" | "next_head") =>
    survey.named[to] !== undefined && <a class="button" href={headHref(survey, survey.named[to])} title={say(word)} aria-label={say(word)} rel={word === "next_head" ? "next" : "prev"}>{sign}</a>;
  return (
    <header class="bar">
      <span class="row">
        <a class="brand" href={homeHref()} data-test="home" title={say("home")}><strong>headscope</strong> <span class="quiet">{say("atlas")}</span></a>
        <bdi class="model" title={model.file}>{model.name}</bdi>
        {cell === null ? (
          <span class="quiet small">{say("layers_heads", { layers: survey.layers.length, heads: survey.heads.length })} · <bdi>{corpus.name}</bdi> · {[
            say("n_documents", { n: count(counts.documents) }), say("n_windows", { n: count(counts.windows) }),
            say("tokens", { n: count(counts.tokens) }),
          ].join(" · ")}</span>
        ) : (
          <>
            <span class="row">{step(at - 1, "‹", "previous_head")}<b class="where">{say("layer_head", { layer, head })}</b>{step(at + 1, "›", "next_head")}</span>
            <Map survey={survey} cell={cell} />
          </>
        )}
      </span>
      <span class="row"><Settings say={say} /></span>
    </header>
  );
}

/** All heads as small tiles; this one is framed. */
function Map({ survey, cell }: { survey: Survey; cell: number }) {
  return (
    <nav class="map" aria-label={say("every_head")} style={{ gridTemplateColumns: `repeat(${survey.heads.length}, 1fr)` }}>
      {survey.layers.flatMap((_, row) => survey.heads.map((_, column) => {
        const other = row * survey.heads.length + column;
        const label = survey.labels?.[other];
        if (!survey.named.includes(other)) return <span key={other} />;
        return <a key={other} class={`g-${label ? groupOf(label) : "plain"}`} href={headHref(survey, other)} tabIndex={-1} title={headLabel(survey, other)} aria-label={headLabel(survey, other)} aria-current={other === cell ? "page" : undefined} />;
      }))}
    </nav>
  );
}
