// How the survey was made: model, corpus, settings, versions, files.
import { count } from "../../words/numbers";
import type { Survey } from "../data";
import { say } from "../words";
import { Facts } from "./facts";

export function Made({ survey }: { survey: Survey }) {
  const { model, corpus } = survey;
  return (
    <section class="panel" id="made" data-test="made">
      <h2>{say("made")}</h2>
      <Facts rows={[
        [say("made_model"), model.file],
        [say("made_weights"), model.sha256],
        [say("made_corpus"), `${corpus.name} (${corpus.kind}, ${say("made_files", { n: count(corpus.count) })})`],
        ...survey.settings.map(([name, value]): [string, string] => [say("made_setting", { name }), value === "null" ? "–" : value]),
        ...survey.versions.map(([name, value]): [string, string] => [say("made_version", { name }), value]),
      ]} />
      <details>
        <summary>{say("files")}</summary>
        <Facts rows={corpus.files.map(([name, bytes]) => [name, say("bytes", { n: count(bytes) })])} />
      </details>
    </section>
  );
}
