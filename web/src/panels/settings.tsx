// The settings for language and theme, on the right of every page's header.
import { language, theme, THEMES } from "../state/appearance";
import type { common } from "../words/common";
import { LANGUAGES, spoken } from "../words/speech";
import { Sign } from "./controls";

const SIGNS = { auto: "◐", light: "○", dark: "●" };

export const Settings = ({ say }: { say: (word: keyof typeof common) => string }) => (
  <>
    <select value={spoken.value} title={say("language")} aria-label={say("language")} data-test="language" onChange={(event) => { language.value = event.currentTarget.value; }}>
      {Object.entries(LANGUAGES).map(([name, label]) => <option key={name} value={name}>{label}</option>)}
    </select>
    <Sign says={`${say("theme")}: ${say(`theme_${theme.value}`)}`} data-test="theme"
      onClick={() => { theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]; }}>
      {SIGNS[theme.value]}
    </Sign>
  </>
);
