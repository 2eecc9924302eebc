// The header of the report: the model, the corpus and its size, and refused documents.
import { Settings } from "../../panels/settings";
import { count } from "../../words/numbers";
import type { Survey } from "../data";
import { counted, say, told } from "../words";

export function Header({ survey }: { survey: Survey }) {
  const { model, corpus, counts, run, refused } = survey;
  const numbers = [
    ["documents", counts.documents], ["windows", counts.windows], ["all_tokens", counts.tokens],
    ["layers", survey.layers.length], ["heads", survey.named.length], ["parameters", model.parameters],
  ] as const;
  return (
    <header>
      <div class="row spread">
        <span class="row"><strong class="brand">headscope</strong><span class="quiet">{say("brand")}</span></span>
        <span class="row"><Settings /></span>
      </div>
      <h1>{told(say("over"), { model: <bdi>{model.name}</bdi>, corpus: <bdi>{corpus.name}</bdi> })}</h1>
      <p class="quiet">
        {say("run", { class: model.class, tokens: counted("tokens", run.length, { n: count(run.length) }), dtype: run.dtype, device: run.device })}
      </p>
      <dl class="counts" data-test="counts">
        {numbers.map(([word, n]) => <div key={word}><dt>{counted(word, n)}</dt><dd>{count(n)}</dd></div>)}
      </dl>
      {refused.count > 0 && (
        <p class="trouble" data-test="refusals">
          {counted("refused", refused.count, {
            n: count(refused.count), all: count(counts.documents + refused.count),
            reasons: refused.reasons.map(([reason, n]) => `${count(n)} ${reason}`).join(", "),
          })}{" "}
          {refused.documents.length > 0 && <button class="plain" onClick={() => document.getElementById("refused")?.scrollIntoView()}>{say("refused_which")}</button>}
        </p>
      )}
    </header>
  );
}
