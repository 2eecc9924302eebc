// The settings for language and theme, on the right of every page's header.
import { language, theme, THEMES } from "../state/appearance";
import type { common } from "../words/common";
import { LANGUAGES, spoken, type Language } from "../words/speech";
import { Menu, Sign } from "./controls";

const SIGNS = { auto: "◐", light: "○", dark: "●" };

export const Settings = ({ say }: { say: (word: keyof typeof common) => string }) => (
  <>
    <Menu value={spoken.value} names={Object.keys(LANGUAGES) as Language[]} says={(name) => LANGUAGES[name]} title={say("language")} aria-label={say("language")} test="language" onPick={(name) => { language.value = name; }} />
    <Sign says={`${say("theme")}: ${say(`theme_${theme.value}`)}`} data-test="theme"
      onClick={() => { theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]; }}>
      {SIGNS[theme.value]}
    </Sign>
  </>
);
