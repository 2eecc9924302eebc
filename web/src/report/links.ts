// The addresses of the site's pages, which are files beside each other.
import { APPEARANCE, toHash, type Fields } from "../state/hash";
import { headLabel, type Survey } from "./data";

/** The reader's theme and language, as the end of an address. */
const appearance = (): string => {
  const hash = toHash(APPEARANCE as unknown as Fields);
  return hash && `#${hash}`;
};

/** A head's page, in the reader's theme and language. */
export function headHref(survey: Survey, cell: number): string {
  const [layer, head] = headLabel(survey, cell).split(".");
  return `head-${layer}-${head}.html${appearance()}`;
}

/** The home page. */
export const homeHref = (): string => `index.html${appearance()}`;
