// Relations of Universal Dependencies in words: [dependent, head]. Unknown subtypes are called as their relation.
import { spoken, type Language } from "../../words/speech";

type Names = Record<string, [string, string]>;

const en: Names = {
  acl: ["noun clause", "noun"], "acl:relcl": ["relative clause", "noun"], advcl: ["adverbial clause", "verb"], advmod: ["adverb", "modified word"],
  amod: ["adjective", "noun"], appos: ["apposition", "noun"], aux: ["auxiliary", "verb"], "aux:pass": ["passive auxiliary", "verb"],
  case: ["preposition", "noun"], cc: ["conjunction", "conjunct"], ccomp: ["clausal complement", "verb"], clf: ["classifier", "noun"],
  compound: ["compound part", "noun"], "compound:prt": ["verb particle", "verb"], conj: ["conjunct", "first conjunct"], cop: ["copula", "predicate"],
  csubj: ["clausal subject", "verb"], dep: ["dependent", "head"], det: ["determiner", "noun"], discourse: ["interjection", "head"],
  dislocated: ["dislocated word", "head"], expl: ["expletive", "verb"], fixed: ["rest of a phrase", "start"], flat: ["rest of a name", "start"],
  iobj: ["indirect object", "verb"], list: ["list item", "first item"], mark: ["clause marker", "verb"], nmod: ["noun modifier", "noun"],
  "nmod:poss": ["possessor", "noun"], nsubj: ["subject", "verb"], "nsubj:pass": ["passive subject", "verb"], nummod: ["number", "noun"],
  obj: ["object", "verb"], obl: ["oblique", "verb"], parataxis: ["side clause", "verb"], punct: ["punctuation mark", "head"],
  vocative: ["vocative", "verb"], xcomp: ["open complement", "verb"],
};

const ja: Names = {
  acl: ["連体節", "名詞"], "acl:relcl": ["関係節", "名詞"], advcl: ["副詞節", "動詞"], advmod: ["副詞", "被修飾語"], amod: ["形容詞", "名詞"],
  appos: ["同格語", "名詞"], aux: ["助動詞", "動詞"], "aux:pass": ["受動の助動詞", "動詞"], case: ["前置詞・格助詞", "名詞"], cc: ["接続詞", "並列語"],
  ccomp: ["補文", "動詞"], clf: ["助数詞", "名詞"], compound: ["複合語の要素", "名詞"], "compound:prt": ["動詞の小辞", "動詞"], conj: ["並列語", "最初の並列語"],
  cop: ["コピュラ", "述語"], csubj: ["主語節", "動詞"], dep: ["従属語", "主要部"], det: ["限定詞", "名詞"], discourse: ["間投詞", "主要部"],
  dislocated: ["転位語", "主要部"], expl: ["虚辞", "動詞"], fixed: ["成句の続き", "先頭の語"], flat: ["名前の続き", "先頭の語"], iobj: ["間接目的語", "動詞"],
  list: ["列挙の項目", "最初の項目"], mark: ["節の標識", "動詞"], nmod: ["名詞修飾語", "名詞"], "nmod:poss": ["所有者", "名詞"], nsubj: ["主語", "動詞"],
  "nsubj:pass": ["受動文の主語", "動詞"], nummod: ["数詞", "名詞"], obj: ["目的語", "動詞"], obl: ["斜格語", "動詞"], parataxis: ["並置節", "動詞"],
  punct: ["句読点", "主要部"], vocative: ["呼びかけ", "動詞"], xcomp: ["開放補語", "動詞"],
};

const zh: Names = {
  acl: ["名词从句", "名词"], "acl:relcl": ["关系从句", "名词"], advcl: ["状语从句", "动词"], advmod: ["副词", "被修饰词"], amod: ["形容词", "名词"],
  appos: ["同位语", "名词"], aux: ["助动词", "动词"], "aux:pass": ["被动助动词", "动词"], case: ["介词", "名词"], cc: ["连词", "并列成分"],
  ccomp: ["补语从句", "动词"], clf: ["量词", "名词"], compound: ["复合词成分", "名词"], "compound:prt": ["动词小品词", "动词"], conj: ["并列成分", "首个并列成分"],
  cop: ["系动词", "谓语"], csubj: ["主语从句", "动词"], dep: ["从属词", "中心词"], det: ["限定词", "名词"], discourse: ["感叹词", "中心词"],
  dislocated: ["移位词", "中心词"], expl: ["虚位词", "动词"], fixed: ["固定短语的后部", "首词"], flat: ["名称的后部", "首词"], iobj: ["间接宾语", "动词"],
  list: ["列表项", "首项"], mark: ["从句标记", "动词"], nmod: ["名词修饰语", "名词"], "nmod:poss": ["所有者", "名词"], nsubj: ["主语", "动词"],
  "nsubj:pass": ["被动主语", "动词"], nummod: ["数词", "名词"], obj: ["宾语", "动词"], obl: ["间接格成分", "动词"], parataxis: ["并置句", "动词"],
  punct: ["标点", "中心词"], vocative: ["呼语", "动词"], xcomp: ["开放补语", "动词"],
};

export const relations: Record<Language, Names> = { en, ja, zh };

function namesOf(relation: string): [string, string] {
  const table = relations[spoken.value];
  return table[relation] ?? table[relation.split(":")[0]] ?? [relation, table.dep[1]];
}

/** What looks, and what it should find. */
export const endsOfRelation = (relation: string, way: "up" | "down"): { from: string; to: string } => {
  const [dependent, governor] = namesOf(relation);
  return way === "up" ? { from: dependent, to: governor } : { from: governor, to: dependent };
};
