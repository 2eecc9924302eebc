// The home page: what stands out, every head, the table, which head finds which relation; below, figures and how it was made.
import { count } from "../../words/numbers";
import type { Label, Survey } from "../data";
import { isStrong, isWeak } from "../kinds";
import { group, wanted } from "../state";
import { counted, say, told, translated, type Word } from "../words";
import { Definitions } from "./definitions";
import { MostFelt, Removal } from "./effects";
import { Figures } from "./figures";
import { isWanted } from "./finder";
import { Grid } from "./grid";
import { Made } from "./made";
import { Refused } from "./refused";
import { SyntaxTable } from "./relations";
import { StandingHeads, unmeasured } from "./standing";
import { Story } from "./story";
import { HeadsTable } from "./table";

/** What was found, in a sentence with its numbers; or how many heads are wanted. */
function Headline({ survey }: { survey: Survey }) {
  const { labels, named, model } = survey;
  const all = count(named.length);
  if (!labels) return <h1>{told(say("home_title_plain", { n: all }), { model: <bdi>{model.name}</bdi> })}</h1>;
  const having = (is: (label: Label) => boolean): string => count(named.filter((cell) => labels[cell] && is(labels[cell])).length);
  const strong = having(isStrong);
  const found = named.filter((cell) => isWanted(survey, cell)).length;
  const what = [group.value && say(`group_${group.value}`), wanted.value.trim() && `“${wanted.value.trim()}”`].filter(Boolean).join(" · ");
  return (
    <div>
      <h1>{what ? say("home_found", { n: count(found), all, what }) : <>{told(say("home_title", { all }), { n: <span data-test="labelled">{having(({ kind }) => kind !== "none")}</span> })}{strong !== "0" && say("home_strong", { strong })}</>}</h1>
      <p class="quiet">{told(say("home_key", { weak: having((label) => label.kind !== "none" && isWeak(label)) }), { none: <span data-test="unlabelled">{having(({ kind }) => kind === "none")}</span> })}</p>
    </div>
  );
}

/** The sections of the page, each a click away; the address keeps the reader's state. */
function Contents({ survey }: { survey: Survey }) {
  const { labels, syntax, effects } = survey;
  const sections: [id: string, word: Word, there: unknown][] = [
    ["grid", "every_head", true], ["kinds", "kinds", labels], ["felt", "felt", effects], ["table", "table", true], ["syntax", "syntax_home", syntax?.length],
    ["removal", "removal", effects?.removal.length], ["standing", "standing", survey.standing.length || unmeasured(survey).length], ["figures", "figures", true], ["made", "made", true],
  ];
  return (
    <nav class="contents" aria-label={say("contents")}>
      {sections.filter(([, , there]) => there).map(([id, word]) => <button key={id} class="plain" onClick={() => document.getElementById(id)?.scrollIntoView()}>{say(word)}</button>)}
    </nav>
  );
}

export function Home({ survey }: { survey: Survey }) {
  const { model, counts, refused, run } = survey;
  const numbers = [
    ["documents", counts.documents], ["windows", counts.windows], ["all_tokens", counts.tokens],
    ["layers", survey.layers.length], ["heads", survey.named.length], ["parameters", model.parameters],
  ] as const;
  return (
    <main class="home">
      <Headline survey={survey} />
      {refused.count > 0 && (
        <p class="trouble" data-test="refusals">
          {counted("refused", refused.count, {
            n: count(refused.count), all: count(counts.documents + refused.count),
            reasons: refused.reasons.map(([reason, n]) => say("reason", { n: count(n), reason: translated(reason) })).join(", "),
          })}{" "}
          {refused.documents.length > 0 && <button class="plain" onClick={() => document.getElementById("refused")?.scrollIntoView()}>{say("refused_which")}</button>}
        </p>
      )}
      <Contents survey={survey} />
      <Grid survey={survey} />
      <Story survey={survey} />
      <MostFelt survey={survey} />
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
