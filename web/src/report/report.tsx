// The site of a survey: the home page, or the page of one head.
import type { Head, Survey } from "./data";
import { Header } from "./sections/header";
import { HeadPage } from "./sections/headpage";
import { Home } from "./sections/home";

export function Report({ survey, head }: { survey: Survey; head: Head | undefined }) {
  return (
    <>
      <Header survey={survey} cell={head?.cell ?? null} />
      {head ? <HeadPage key={head.cell} survey={survey} head={head} /> : <Home survey={survey} />}
    </>
  );
}
