// Entry point of a page that shows traces.
import { begin } from "./begin";

begin(null);
