// The home page: what stands out, every head, the table, which head finds which relation; below, figures and how it was made.
import { count } from "../../words/numbers";
import type { Survey } from "../data";
import { counted, say, told } from "../words";
import { Definitions } from "./definitions";
import { MostFelt, Removal } from "./effects";
import { Figures } from "./figures";
import { Grid } from "./grid";
import { Groups } from "./groups";
import { Made } from "./made";
import { Refused } from "./refused";
import { SyntaxTable } from "./relations";
import { StandingHeads } from "./standing";
import { Story } from "./story";
import { HeadsTable } from "./table";

export function Home({ survey }: { survey: Survey }) {
  const { model, counts, refused, run } = survey;
  const numbers = [
    ["documents", counts.documents], ["windows", counts.windows], ["all_tokens", counts.tokens],
    ["layers", survey.layers.length], ["heads", survey.named.length], ["parameters", model.parameters],
  ] as const;
  return (
    <main class="home">
      <div class="sides">
        <div class="tale">
          <h1>{told(say(survey.labels ? "home_title" : "home_title_plain", { n: count(survey.named.length) }), { model: <bdi>{model.name}</bdi> })}</h1>
          {refused.count > 0 && (
            <p class="trouble" data-test="refusals">
              {counted("refused", refused.count, {
                n: count(refused.count), all: count(counts.documents + refused.count),
                reasons: refused.reasons.map(([reason, n]) => `${count(n)} ${reason}`).join(", "),
              })}{" "}
              {refused.documents.length > 0 && <button class="plain" onClick={() => document.getElementById("refused")?.scrollIntoView()}>{say("refused_which")}</button>}
            </p>
          )}
          <Story survey={survey} />
          <MostFelt survey={survey} />
        </div>
        <div><Grid survey={survey} /><Groups survey={survey} /></div>
      </div>
      <HeadsTable survey={survey} />
      <SyntaxTable survey={survey} />
      <Removal survey={survey} />
      <StandingHeads survey={survey} />
      <Figures survey={survey} />
      <section class="panel">
        <h2>{told(say("over"), { model: <bdi>{model.name}</bdi>, corpus: <bdi>{survey.corpus.name}</bdi> })}</h2>
        <p class="quiet">{say("run", { class: model.class, tokens: say("tokens", { n: count(run.length) }), dtype: run.dtype, device: run.device })}</p>
        <dl class="counts" data-test="counts">
          {numbers.map(([word, n]) => <div key={word}><dt>{counted(word, n)}</dt><dd>{count(n)}</dd></div>)}
        </dl>
      </section>
      <Definitions survey={survey} />
      <Made survey={survey} />
      <Refused survey={survey} />
      <p class="quiet small">{say("honest")}</p>
    </main>
  );
}
