// Which tokens of a text carry content, by the rules of headscope.explain: function words, pronouns, whole words.
import type { Encoded } from "./wordpiece";

const wordsOf = (lines: string): ReadonlySet<string> => new Set(lines.split(/\s+/));

const FUNCTION_WORDS = wordsOf(`a about above across after again against all along am amid among an and any are around as at be because
been before behind being below beneath beside besides between beyond both but by can could did do does
doing despite down during each few for from had has have he her
here hers him his how i if in into is it its just may me might more most must my no nor not now of
off on once one only or other our ours out over own said same shall she should so some such than
that the their them then there these they this those through throughout to too toward towards under until
up upon us very via was we were what when where which while who whom whose why will with within without
would you your yours s t d ll m re ve don n`);
const THIRD_PERSON = wordsOf(`he him his himself she her hers herself it its itself they them their theirs themselves`);
const OTHER_PRONOUNS = wordsOf(`i me my mine myself we us our ours ourselves you your yours
yourself this these those who whom whose`);
const PUNCTUATION = /^[\p{P}!-/:-@[-`{-~ ]*[\p{P}!-/:-@[-`{-~][\p{P}!-/:-@[-`{-~ ]*$/u;

/** One token of a text. */
export interface Part {
  /** Its whole word as it stands in the text. */
  word: string;
  content: boolean;
  /** A content word with a letter, or a pronoun. */
  looking: boolean;
  /** A pronoun of the third person. */
  referring: boolean;
  /** Equal for equal spellings; "" for special tokens and signs. */
  group: string;
  /** 0 for the first text, 1 for the second. */
  text: number;
  /** The number of its word; special tokens count as words. */
  place: number;
  /** The same without counting hyphens: the words on both sides of one are neighbours. */
  step: number;
  role: "cls" | "sep" | "punctuation" | null;
}

export function contentOf({ tokens, words, spans, special, segments }: Encoded, text: string, pair: string | null, prefix: string, unknown: string): Part[] {
  const sources = [Array.from(text), Array.from(pair ?? "")];
  const plain = tokens.map((token) => (token.startsWith(prefix) && token.length > prefix.length ? token.slice(prefix.length) : token));
  const second = special.indexOf(true, special.indexOf(false));
  const texts = tokens.map((_, at) => Number(pair !== null && at > second));
  let place = -1;
  const places = tokens.map((_, at) => {
    const continued = at > 0 && words[at] !== null && words[at] === words[at - 1] && segments[at] === segments[at - 1];
    return continued ? place : ++place;
  });
  const pieces = tokens.map((_, at) => {
    const span = spans[at];
    return special[at] || !span ? plain[at] : sources[texts[at]].slice(...span).join("") || plain[at];
  });
  let hyphens = 0;
  return tokens.map((token, at) => {
    const word = special[at] ? token : pieces.filter((_, n) => places[n] === places[at]).join("");
    const small = word.toLowerCase();
    hyphens += Number(/^[-\u2010\u2011]$/.test(word));
    const named = /[\p{L}\p{N}]/u.test(word) && !special[at];
    const content = named && token !== unknown && !FUNCTION_WORDS.has(small);
    const referring = THIRD_PERSON.has(small);
    const sign = !special[at] && PUNCTUATION.test(pieces[at]);
    return {
      word, content, referring, text: texts[at], place: places[at], step: places[at] - hyphens, looking: token !== unknown && !special[at] && ((content && /\p{L}/u.test(word)) || referring || OTHER_PRONOUNS.has(small)),
      group: named && !sign ? `${small}/${plain[at].toLowerCase()}` : "",
      role: special[at] ? (at === 0 ? "cls" : "sep") : sign ? "punctuation" : null,
    };
  });
}
