// A token's name: a dimmed dot before what continues a word, and its place where the text has the word elsewhere, too.
import { isQuiet, type Label } from "../text/shown";

export const Name = ({ label }: { label: Label }) => (
  <bdi class={isQuiet(label) ? "special" : ""}>{label.continues && <small>·</small>}{label.text}{label.repeats !== null && <sub>{label.repeats}</sub>}</bdi>
);

/** Its text alone, which may be cut where room ends. */
export const Text = ({ of: { text }, ...more }: { of: Label; class?: string }) => <bdi title={text} {...more}>{text}</bdi>;
