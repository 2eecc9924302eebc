// Entry point of the report: read the embedded survey and show it.
import "../base.css";
import "./report.css";
import { render } from "preact";
import { followTheme } from "../state/appearance";
import { followHash } from "../state/steps";
import { followLanguage } from "../words/speech";
import { readHead, readSurvey } from "./data";
import { nameSpecial } from "./kinds";
import { Report } from "./report";
import { FIELDS } from "./state";
import { say, takeWords } from "./words";

const page = document.getElementById("page")!;

followHash(FIELDS);
followTheme();
followLanguage();
try {
  const survey = readSurvey();
  const head = readHead();
  nameSpecial(survey);
  takeWords(survey);
  page.textContent = "";
  render(<Report survey={survey} head={head} />, page);
  document.documentElement.dataset.painted = "";
} catch (error) {
  page.textContent = say("broken", { why: error instanceof Error ? error.message : String(error) });
}
