// Entry point of a page with a model, which runs what is typed.
import { begin } from "./begin";
import { followTyped, openModel, openOnGuess } from "./model/live";
import { Live } from "./panels/live";

begin({ open: openModel, look: openOnGuess, follow: followTyped, Panel: Live });
