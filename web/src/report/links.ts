// The addresses of the site's pages: files beside each other, or hashes of a single file.
import { APPEARANCE, toHash, type Fields } from "../hash";
import { headLabel, type Survey } from "./data";

const appearance = (): string => toHash(APPEARANCE as unknown as Fields);
const joined = (...parts: string[]): string => parts.filter(Boolean).join("&");

/** A head's page, in the reader's theme and language. */
export function headHref(survey: Survey, cell: number): string {
  const [layer, head] = headLabel(survey, cell).split(".");
  if (survey.single) return `#${joined(`l=${layer}&h=${head}`, appearance())}`;
  const hash = appearance();
  return `head-${layer}-${head}.html${hash ? `#${hash}` : ""}`;
}

/** The home page. */
export const homeHref = (survey: Survey): string => (survey.single ? `#${appearance()}` : `index.html${appearance() ? `#${appearance()}` : ""}`);
