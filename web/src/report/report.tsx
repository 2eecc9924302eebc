// The report of a survey: its sections in order.
import type { Survey } from "./data";
import { Definitions } from "./sections/definitions";
import { Figures } from "./sections/figures";
import { Grid } from "./sections/grid";
import { Head } from "./sections/head";
import { Header } from "./sections/header";
import { Made } from "./sections/made";
import { Refused } from "./sections/refused";
import { StandingHeads } from "./sections/standing";
import { say } from "./words";

export function Report({ survey }: { survey: Survey }) {
  return (
    <>
      <Header survey={survey} />
      <main>
        <div class="sides"><Grid survey={survey} /><Head survey={survey} /></div>
        <StandingHeads survey={survey} />
        <Figures survey={survey} />
        <Definitions survey={survey} />
        <Made survey={survey} />
        <Refused survey={survey} />
        <p class="quiet small">{say("honest")}</p>
      </main>
    </>
  );
}
