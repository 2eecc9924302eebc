"""Sentences of labels in three languages, made of their clauses. Nothing reads them back: tables have the clauses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from headscope.atlas.labels.passages import CONTENT, MARKS, TAGS
from headscope.atlas.labels.search import FORM, LEARNED, Clause
from headscope.results.head_values import LANGUAGES

AFTER_CJK = re.compile(r"(?<=[\u3040-\u30ff\u4e00-\u9fff])(?=[0-9A-Za-z])")
"""Places before letters and digits in Japanese and Chinese, where a space stands."""

NONE = "none"
"""The label of a head of which nothing can be said."""

RESERVATIONS = {
    "documents": ("fewer than {n} documents in a half", "文書が {n} 件未満の半分がある", "有一半中，文档少于 {n} 篇"),
    "words": ("fewer than {n} words of a half have a choice",
        "見る先を選べる単語が {n} 語未満の半分がある", "有一半中，有选择余地的词少于 {n} 个"),
    "pairs": ("fewer than {n} different pairs in a half",
        "異なる組が {n} 組未満の半分がある", "有一半中，不同的词对少于 {n} 个"),
    "prediction": ("nothing predicts its pairs on the other half of the documents",
        "もう半分の文書では、その組を予測できるものがない", "在另一半文档上，没有什么能预测它的词对"),
}  # fmt: skip
"""Reason for reservations about a head, or for no label -> what it says, with its count."""

CLASSES: dict[str, tuple[str, str, str, str]] = {
    "NOUN": ("a noun", "nouns", "名詞", "名词"),
    "PROPN": ("a name", "names", "固有名詞", "专有名词"),
    "VERB": ("a verb", "verbs", "動詞", "动词"),
    "AUX": ("an auxiliary", "auxiliaries", "助動詞", "助动词"),
    "ADJ": ("an adjective", "adjectives", "形容詞", "形容词"),
    "ADV": ("an adverb", "adverbs", "副詞", "副词"),
    "PRON": ("a pronoun", "pronouns", "代名詞", "代词"),
    "DET": ("a determiner", "determiners", "限定詞", "限定词"),
    "ADP": ("a preposition", "prepositions", "前置詞・格助詞", "介词"),
    "NUM": ("a number", "numbers", "数詞", "数词"),
    "CCONJ": ("a conjunction", "conjunctions", "等位接続詞", "并列连词"),
    "SCONJ": ("a subordinator", "subordinators", "従位接続詞", "从属连词"),
    "PART": ("a particle", "particles", "小辞", "小品词"),
    "PUNCT": ("punctuation", "punctuation", "句読点", "标点"),
    "NOUN|PROPN": ("a noun or name", "nouns and names", "名詞・固有名詞", "名词或专有名词"),
    "NOUN|PROPN|PRON": ("a noun, name or pronoun", "nouns, names and pronouns", "名詞・代名詞", "名词或代词"),
    "VERB|AUX": ("a verb or auxiliary", "verbs and auxiliaries", "動詞・助動詞", "动词或助动词"),
    "VERB|ADP": ("a verb or preposition", "verbs and prepositions", "動詞・前置詞", "动词或介词"),
    "ADJ|ADV": ("an adjective or adverb", "adjectives and adverbs", "形容詞・副詞", "形容词或副词"),
    "PROPN|NUM": ("a name or number", "names and numbers", "固有名詞・数詞", "专有名词或数词"),
    "NOUN|VERB|ADJ": ("a noun, verb or adjective", "nouns, verbs and adjectives", "名詞・動詞・形容詞", "名动形词"),
    "content": ("a content word", "content words", "内容語", "实词"),
    "function": ("a function word", "function words", "機能語", "虚词"),
    "function|PUNCT": ("a function word or mark", "function words and marks", "機能語・記号", "虚词或标点"),
    "article": ("an article", "articles", "冠詞", "冠词"),
    "demonstrative": ("a demonstrative", "demonstratives", "指示語", "指示词"),
    "possessive": ("a possessive", "possessives", "所有代名詞", "物主代词"),
    "personal": ("a personal pronoun", "personal pronouns", "人称代名詞", "人称代词"),
    "relative": ("a wh-word", "wh-words", "疑問・関係詞", "疑问或关系词"),
    "opener": ("a word that opens a clause", "words that open a clause", "節を導く語", "引导从句的词"),
    "negation": ("a negation", "negations", "否定語", "否定词"),
    "limiting": ("a limiting word (only, hardly, …)", "limiting words", "限定の副詞（only など）", "限制词（only 等）"),
    "negation|limiting": (
        "a negation or limiting word", "negations and limiting words", "否定・限定の語", "否定词或限制词",
    ),
    "saying": ("a verb of saying", "verbs of saying", "発話の動詞", "言说动词"),
    "time": ("a time word", "time words", "時の語", "时间词"),
    "time|number": ("a number or time word", "numbers and time words", "数字・時の語", "数字或时间词"),
    "comparative": ("a comparative", "comparatives", "比較の語", "比较词"),
    "modal": ("a modal", "modals", "法助動詞", "情态动词"),
    "be": ("a form of be", "forms of be", "be の形", "be 的形式"),
    "connective": ("a connective (but, then, …)", "connectives", "接続の語（but など）", "连接词（but 等）"),
    "preposition": ("a preposition", "prepositions", "前置詞", "介词"),
    "number": ("a number", "numbers", "数字", "数字"),
    "clitic": ("a clitic ('s, n't)", "clitics", "接語（'s、n't）", "附着词（'s、n't）"),
    "comma": ("a comma", "commas", "コンマ", "逗号"),
    "hyphen": ("a hyphen or dash", "hyphens", "ハイフン・ダッシュ", "连字符或破折号"),
    "closing mark": ("a closing mark (. ? !)", "closing marks", "文末の記号（. ? !）", "句末标点（. ? !）"),
    "colon": ("a colon or semicolon", "colons", "コロン・セミコロン", "冒号或分号"),
    "quote": ("a quotation mark", "quotation marks", "引用符", "引号"),
    "opening bracket": ("an opening bracket", "opening brackets", "開き括弧", "左括号"),
    "closing bracket": ("a closing bracket", "closing brackets", "閉じ括弧", "右括号"),
    "first": ("the first word", "first words", "最初の語", "第一个词"),
    "start": ("one of the first two words", "the first two words", "最初の二語", "前两个词之一"),
    "last": ("the last word", "last words", "最後の語", "最后一个词"),
    "clause start": ("the first word of a clause", "first words of clauses", "節の最初の語", "从句的首词"),
    "first verb": ("the first verb", "first verbs", "最初の動詞", "第一个动词"),
    "subject": ("a subject", "subjects", "主語", "主语"),
    "main subject": ("the main subject", "main subjects", "主節の主語", "主句的主语"),
    "object": ("an object", "objects", "目的語", "宾语"),
    "predicate": ("the predicate of a clause", "predicates", "節の述語", "从句的谓语"),
    "main predicate": ("the main predicate", "main predicates", "主節の述語", "主句的谓语"),
    "main predicate or auxiliary": (
        "the main predicate or its auxiliary", "main predicates", "主節の述語かその助動詞", "主句的谓语或其助动词",
    ),
    "pieces": ("a word of several tokens", "words of several tokens", "複数トークンの語", "由多个词元组成的词"),
    "noun head": ("a noun that heads its phrase", "nouns that head a phrase", "句の主要部の名詞", "短语中心的名词"),
}  # fmt: skip
"""Class -> one of it and many of it in English; in Japanese; in Chinese."""

RELATIONS: dict[str, tuple[str, str, str]] = {
    "offset-1": ("the previous word", "直前の語", "前一个词"),
    "offset+1": ("the next word", "直後の語", "后一个词"),
    **{
        f"offset{sign}{n}": (f"the word {n} {en}", f"{n} 語{ja}の語", f"{zh}第 {n} 个词")
        for sign, en, ja, zh in (("-", "before", "前", "前"), ("+", "ahead", "後", "后"))
        for n in (2, 3, 4)
    },
    "next clause start": ("the next word that begins a clause", "次の節の最初の語", "下一个从句的首词"),
    "previous clause start": ("the last word before it that begins a clause", "直前の節の最初の語", "上一个从句的首词"),
    "same word": ("the same word elsewhere", "別の位置の同じ語", "别处的同一个词"),
    "stem": ("the same word or a form of it elsewhere", "別の位置の同じ語かその語形", "别处的同一个词或其变形"),
    "same tag": ("a word of its own part of speech", "同じ品詞の語", "词性相同的词"),
    "same kind": (
        "a word of its own kind (content, function, mark)",
        "同じ種類（内容語・機能語・記号）の語",
        "同类（实词、虚词、标点）的词",
    ),
    "most related": ("the word most related in meaning", "意味が最も近い語", "意义最相近的词"),
    "closely related": ("a word of the same or a very close meaning", "意味が同じかごく近い語", "意义相同或很相近的词"),
    "related": ("a word of the same or related meaning", "意味が同じか近い語", "意义相同或相近的词"),
    "quote's partner": ("the other quotation mark", "対になる引用符", "成对的另一个引号"),
    "opening quote": ("the opening mark of its quotation", "引用の開始記号", "所在引文的起始引号"),
    "bracket's partner": ("the other bracket", "対になる括弧", "成对的另一个括号"),
    "paired word": (
        "its partner (If …, either … or, more … than)", "組になる語（either … or など）", "成对的词（either … or 等）",
    ),
    "opens or closes": (
        "what opens or closes its pair (If …, either … or, quotes)", "組を開く・閉じる語", "成对词语或引号的另一半",
    ),
    "up:function": ("the word that it serves", "それが付く語", "它所服务的词"),
    "dn:function": ("its function word", "それに付く機能語", "附属于它的虚词"),
    "up:modifier": ("the head of its phrase", "句の主要部", "所在短语的中心词"),
    "dn:modifier": ("its modifier", "その修飾語", "它的修饰语"),
    "up:phrase": ("what governs its phrase", "句の支配語", "短语的支配词"),
    "dn:phrase": ("a phrase that it governs", "それが支配する句", "受它支配的短语"),
    "up:name": ("the head of its name or compound", "名前・複合語の主要部", "名称或复合词的中心"),
    "dn:name": ("a part of its name or compound", "名前・複合語の要素", "名称或复合词的成分"),
    "up:case>head": ("what its phrase depends on", "句が係る語", "短语所依附的词"),
    "dn:case>head": ("the preposition of a phrase of its", "それに係る句の前置詞", "依附于它的短语的介词"),
    "governor": ("the word that governs it", "それを支配する語", "支配它的词"),
    "dependent": ("a word that depends on it", "それに係る語", "依附于它的词"),
    "governor or dependent": ("the word that governs it or depends on it", "係り受けの相手", "与它有依存关系的词"),
    "governor or its own": ("its governor, or the governor's own", "支配語かそのまた支配語", "它的支配词或再上一级"),
    "above": ("a word above it in the syntax tree", "構文木で上にある語", "句法树中在它之上的词"),
    "its clause's subject": ("the subject of its clause", "その節の主語", "所在从句的主语"),
    "its clause's predicate": ("the predicate of its clause", "その節の述語", "所在从句的谓语"),
    "its clause's first word": ("the first word of its clause", "その節の最初の語", "所在从句的首词"),
    "conjunct": ("a word coordinated with it", "並列の相手", "与它并列的词"),
    "relative's noun": ("the noun that its clause is about", "関係節の先行詞", "关系从句的先行词"),
}  # fmt: skip

ARCS: dict[str, tuple[tuple[str, str], tuple[str, str], tuple[str, str]]] = {
    "nsubj": (("subject", "verb"), ("主語", "述語"), ("主语", "谓语")),
    "nsubj:pass": (("passive subject", "verb"), ("受動文の主語", "動詞"), ("被动主语", "动词")),
    "obj": (("object", "verb"), ("目的語", "動詞"), ("宾语", "动词")),
    "iobj": (("indirect object", "verb"), ("間接目的語", "動詞"), ("间接宾语", "动词")),
    "obl": (("oblique", "verb"), ("斜格語", "動詞"), ("间接格成分", "动词")),
    "nmod": (("noun modifier", "noun"), ("名詞修飾語", "名詞"), ("名词修饰语", "名词")),
    "nmod:poss": (("possessor", "noun"), ("所有者", "名詞"), ("所有者", "名词")),
    "amod": (("adjective", "noun"), ("形容詞", "名詞"), ("形容词", "名词")),
    "nummod": (("number", "noun"), ("数詞", "名詞"), ("数词", "名词")),
    "det": (("determiner", "noun"), ("限定詞", "名詞"), ("限定词", "名词")),
    "case": (("preposition", "noun"), ("前置詞・格助詞", "名詞"), ("介词", "名词")),
    "advmod": (("adverb", "modified word"), ("副詞", "被修飾語"), ("副词", "被修饰词")),
    "compound": (("compound part", "noun"), ("複合語の要素", "名詞"), ("复合词成分", "名词")),
    "compound:prt": (("verb particle", "verb"), ("動詞の小辞", "動詞"), ("动词小品词", "动词")),
    "flat": (("rest of a name", "name's start"), ("名前の続き", "名前の先頭"), ("名称的后部", "名称首词")),
    "appos": (("apposition", "noun"), ("同格語", "名詞"), ("同位语", "名词")),
    "conj": (("later conjunct", "first conjunct"), ("並列語", "最初の並列語"), ("并列成分", "首个并列成分")),
    "cc": (("conjunction", "conjunct"), ("接続詞", "並列語"), ("连词", "并列成分")),
    "mark": (("clause marker", "verb"), ("節の標識", "動詞"), ("从句标记", "动词")),
    "aux": (("auxiliary", "verb"), ("助動詞", "動詞"), ("助动词", "动词")),
    "cop": (("copula", "predicate"), ("コピュラ", "述語"), ("系动词", "谓语")),
    "advcl": (("adverbial clause", "verb"), ("副詞節", "動詞"), ("状语从句", "动词")),
    "xcomp": (("open complement", "verb"), ("開放補語", "動詞"), ("开放补语", "动词")),
    "ccomp": (("clausal complement", "verb"), ("補文", "動詞"), ("补语从句", "动词")),
    "acl": (("noun clause", "noun"), ("連体節", "名詞"), ("名词从句", "名词")),
    "acl:relcl": (("relative clause", "noun"), ("関係節", "名詞"), ("关系从句", "名词")),
    "aux:pass": (("passive auxiliary", "verb"), ("受動の助動詞", "動詞"), ("被动助动词", "动词")),
    "clf": (("classifier", "noun"), ("助数詞", "名詞"), ("量词", "名词")),
    "csubj": (("clausal subject", "verb"), ("主語節", "動詞"), ("主语从句", "动词")),
    "dep": (("dependent", "head"), ("従属語", "主要部"), ("从属词", "中心词")),
    "discourse": (("interjection", "head"), ("間投詞", "主要部"), ("感叹词", "中心词")),
    "dislocated": (("dislocated word", "head"), ("転位語", "主要部"), ("移位词", "中心词")),
    "expl": (("expletive", "verb"), ("虚辞", "動詞"), ("虚位词", "动词")),
    "fixed": (("rest of a phrase", "start"), ("成句の続き", "先頭の語"), ("固定短语的后部", "首词")),
    "list": (("list item", "first item"), ("列挙の項目", "最初の項目"), ("列表项", "首项")),
    "parataxis": (("side clause", "verb"), ("並置節", "動詞"), ("并置句", "动词")),
    "punct": (("punctuation mark", "head"), ("句読点", "主要部"), ("标点", "中心词")),
    "vocative": (("vocative", "verb"), ("呼びかけ", "動詞"), ("呼语", "动词")),
}
"""Relation of Universal Dependencies -> its dependent and its head, in each language."""

SIDES: dict[str, tuple[str, str, str]] = {
    "ahead": ("ahead", "後ろ", "之后"),
    "behind": ("before it", "前", "之前"),
    **{f"near{n}": (f"at most {n} words away", f"{n} 語以内", f"{n} 个词以内") for n in (2, 3)},
    **{f"ahead{n}": (f"at most {n} ahead", f"後ろ {n} 語以内", f"之后 {n} 个词以内") for n in (2, 3, 6)},
    **{f"behind{n}": (f"at most {n} before", f"前 {n} 語以内", f"之前 {n} 个词以内") for n in (2, 3, 6)},
}

GROUPS = {
    "offset": "position",
    "same word": "same",
    "stem": "same",
    **dict.fromkeys(("most related", "closely related", "related"), "meaning"),
    **dict.fromkeys(
        ("quote's partner", "opening quote", "bracket's partner", "paired word", "opens or closes"), "pair"
    ),
    **dict.fromkeys(("next", "previous"), "nearest"),
}
"""Start of a relation -> the kind of a label; of others it is `syntax`, or `class` where there is no relation."""

PUNCTUATION = {"PUNCT", *MARKS}
"""Classes of marks."""


def kind_of(clauses: Sequence[Clause]) -> str:
    """The kind of a label, by its first clause: `none`, `learned`, `punctuation`, `class`, or that of its relation."""
    if not clauses:
        return NONE
    clause = clauses[0]
    if clause.relation:
        return next((kind for start, kind in GROUPS.items() if clause.relation.startswith(start)), "syntax")
    if clause.key[:1] == LEARNED:
        return "learned"
    return "punctuation" if clause.key in PUNCTUATION else "class"


def sentence(clauses: Sequence[Clause], such: Sequence[str], *, part: bool = False, looks: str = "") -> dict[str, str]:
    """A description in every language: "determiners: a noun; or the last word".

    Args:
        clauses: at most three; none says `none`.
        such: the kind and the words of a learned class of keys.
        part: whether it holds in part only.
        looks: the class of most words that look; empty if it isn't said.
    """
    if not clauses:
        return {"en": NONE, "ja": "ラベルなし", "zh": "无标签"}
    said = {of: [_clause(clause, such, at) for clause in clauses] for at, of in enumerate(LANGUAGES)}
    start = {"en": "in part: ", "ja": "一部：", "zh": "部分："} if part else dict.fromkeys(LANGUAGES, "")
    if looks:
        _, *many = CLASSES[looks]
        mostly = {"en": "mostly {}: ", "ja": "主に{}：", "zh": "主要为{}："}
        start = {of: start[of] + mostly[of].format(name) for of, name in zip(LANGUAGES, many, strict=True)}
    joints = {"en": ("; ", "; or "), "ja": ("、", "、または"), "zh": ("；", "；或")}
    return {of: AFTER_CJK.sub(" ", start[of] + _in_a_row(said[of], *joints[of])) for of in LANGUAGES}


def shortest(clauses: Sequence[Clause], such: Sequence[str]) -> dict[str, str]:
    """The first clause in every language, without the examples that names of classes and relations give in brackets."""
    said = sentence(clauses[:1], such[:3])
    own = bool(clauses) and clauses[0].key[:1] in (LEARNED, FORM)  # words of the texts, whatever signs they have
    return said if own else {**said, "en": re.sub(r" \([^)]*\)", "", said["en"])}


def reservations(reasons: Mapping[str, int]) -> dict[str, str]:
    """Reservations in every language, from their reasons and counts; empty if there are none."""
    joints = {"en": "; ", "ja": "。", "zh": "；"}
    return {
        of: joints[of].join(RESERVATIONS[reason][at].format(n=count) for reason, count in reasons.items())
        for at, of in enumerate(LANGUAGES)
    }


def looker(clause: Clause) -> str:
    """The class of the words that look by a clause, also where it follows from the key's; empty if nothing is said."""
    if clause.query or not clause.key:
        return clause.query
    if clause.relation == "same tag":
        return clause.key if clause.key in TAGS else ""
    if clause.relation == "same kind":
        kinds = {
            "PUNCT": PUNCTUATION,
            "content": {"content", *CONTENT},
            "function": {"function", *{*TAGS} - CONTENT - {"PART"}},
        }
        return next((kind for kind, of in kinds.items() if {*clause.key.split("|")} <= of), "")
    return ""


def _clause(clause: Clause, such: Sequence[str], language: int) -> str:
    if not clause.query and (alike := looker(clause)):
        clause = Clause(query=alike, key=clause.key, side=clause.side)
    query = f"{CLASSES[clause.query][(1, 2, 3)[language]]}{(': ', '：', '：')[language]}" if clause.query else ""
    key = _key(clause.key, such, language) if clause.key else ""
    side = SIDES[clause.side][language] if clause.side else ""
    if not clause.relation:
        placed = (f"{key} {side}".strip(), f"{side}の{key}", f"{side}的{key}")
        return query + (placed[language] if side else key)
    relation = relation_name(clause.relation, language)
    if language == 0:
        return query + relation + (f", if {key}" if key else "") + (f", {side}" if side else "")
    limits = "、".join(part for part in ((f"{key}なら", f"若为{key}")[language - 1] if key else "", side) if part)
    return query + relation + (f"（{limits}）" if limits else "")


def _key(key: str, such: Sequence[str], language: int) -> str:
    if key[:1] == FORM:
        forms = [f"“{form}”" if language != 1 else f"「{form}」" for form in key[1:].split("|")]
        said = _in_a_row(forms, (", ", "か", "、")[language], (" or ", "か", "或")[language])
        return (f"the word {said}", f"{said}という語", f"{said}这个词")[language]
    if key[:1] == LEARNED:
        kind, *words = such or [""]
        many = CLASSES[kind][(1, 2, 3)[language]] if kind else ("words", "語", "词")[language]
        return (
            f"{many} such as {', '.join(words)}",
            f"{'、'.join(words)} のような{many}",
            f"{'、'.join(words)} 之类的{many}",
        )[language]
    return CLASSES[key][(0, 2, 3)[language]]


def _in_a_row(words: Sequence[str], comma: str, last: str) -> str:
    """Words in a row, of which the last follows another joint."""
    return last.join([*([comma.join(words[:-1])] if words[1:] else []), words[-1]])


def ends_of(relation: str) -> dict[str, tuple[str, str]]:
    """The dependent and the head of a treebank's relation, by language; a subtype may be called as its relation."""
    found = ARCS.get(relation) or ARCS.get(relation.partition(":")[0])
    return dict(zip(LANGUAGES, found or [(relation, head) for _, head in ARCS["dep"]], strict=True))


def relation_name(relation: str, language: int) -> str:
    """A relation in words: 0 English, 1 Japanese, 2 Chinese."""
    if relation in RELATIONS:
        return RELATIONS[relation][language]
    way, _, name = relation.partition(":")
    if way in ("up", "dn"):
        dependent, head = ARCS[name][language]
        if way == "up":
            return (
                f"its {head} (from the {dependent})",
                f"その{head}（{dependent}から）",
                f"它的{head}（自{dependent}）",
            )[language]
        return (f"its {dependent}", f"その{dependent}", f"它的{dependent}")[language]
    way, _, name = relation.partition(" ")
    of = CLASSES[name][(0, 2, 3)[language]].removeprefix("a ").removeprefix("an ").removeprefix("the ")
    if way == "next":
        return (f"the next {of}", f"次の{of}", f"下一个{of}")[language]
    return (f"the last {of} before it", f"直前の{of}", f"前面最近的{of}")[language]
