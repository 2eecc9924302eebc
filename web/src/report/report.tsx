// The site of a survey: the home page, or the page of one head.
import { useEffect } from "preact/hooks";
import type { Head, Survey } from "./data";
import { Header } from "./sections/header";
import { HeadPage } from "./sections/headpage";
import { Home } from "./sections/home";
import { chosenCell } from "./state";

export function Report({ survey, heads }: { survey: Survey; heads: Map<number, Head> }) {
  const chosen = survey.single ? chosenCell(survey) : [...heads.keys()][0];
  const head = chosen === null || chosen === undefined ? undefined : heads.get(chosen);
  useEffect(() => { if (survey.single) scrollTo(0, 0); }, [head]);
  return (
    <>
      <Header survey={survey} cell={head?.cell ?? null} />
      {head ? <HeadPage key={head.cell} survey={survey} head={head} /> : <Home survey={survey} />}
    </>
  );
}
