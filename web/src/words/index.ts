// The page's words in the reader's language.
import { common } from "./common";
import { en as english, type Word as PageWord } from "./en";
import { ja } from "./ja";
import { speaker } from "./speech";
import { zh } from "./zh";

export { count, number, percent } from "./numbers";
export { LANGUAGES, letters, spoken } from "./speech";

const en = { ...common.en, ...english };
export type Word = PageWord | keyof typeof common.en;
export const say = speaker<Word>({ en, ja: { ...common.ja, ...ja }, zh: { ...common.zh, ...zh } });

export const isWord = (name: string): name is Word => name in en;
