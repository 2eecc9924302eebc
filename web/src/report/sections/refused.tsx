// Refused documents, each with its reason.
import { count } from "../../words/numbers";
import type { Survey } from "../data";
import { say } from "../words";
import { Facts } from "./facts";

export function Refused({ survey: { refused } }: { survey: Survey }) {
  if (!refused.documents.length) return null;
  const more = refused.count - refused.documents.length;
  return (
    <section class="panel" id="refused">
      <h2>{say("refused_title")}</h2>
      <Facts rows={refused.documents} />
      {more > 0 && <p class="quiet small">{say("refused_more", { n: count(more) })}</p>}
    </section>
  );
}
