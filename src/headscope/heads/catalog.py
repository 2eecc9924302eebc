"""The catalog of statistics, as data: name, meaning, unit, formula, source. Everything that lists statistics reads it.

To add a statistic, add an entry here and its formula to reference.py, and to fast.py if it is neither a cell nor a
mass. The terminal, the page, the survey, its report and docs/statistics.md then show it without further changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headscope.errors import InputError
from headscope.results.head_values import Measure
from headscope.settings import meant

ROLE_TOKENS = {"cls": frozenset({"[CLS]", "<s>", "<cls>", "[class]"}), "sep": frozenset({"[SEP]", "</s>", "<sep>"})}
"""Role -> its special tokens in common vocabularies."""


TOKENS = ("tokens", "トークン", "词元")


@dataclass(frozen=True)
class Statistic(Measure):
    """A number per query that says where the query looks. A head's number is the mean over its queries.

    Attributes:
        needs: `order` if queries and keys must be one sequence, `values` if v and W_O are needed, `tokens` if it is
            more about tokens than the page knows of them; otherwise empty.
        cell: for a statistic that is one weight of a row: the distance of its key from the query.
        mass: for a statistic that is a sum of weights: the keys' role, a field of `Roles`.
        most, least: predicates for the heads with the highest and the lowest number, in each of LANGUAGES (after
            “{head} ”, “{head} は”, “{head} ”); empty if that end says nothing.
        meanings: the meaning in the other languages.
    """

    needs: str = ""
    cell: int | None = None
    mass: str = ""
    most: tuple[str, ...] = ()
    least: tuple[str, ...] = ()
    meanings: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """The fields that the page and the report need, for JSON."""
        tokens = sorted(ROLE_TOKENS[self.mass]) if self.mass in ROLE_TOKENS else None
        return {**super().record(), "tokens": tokens}


CATALOG: Mapping[str, Statistic] = {
    statistic.name: statistic
    for statistic in (
        Statistic(
            "entropy",
            ("entropy", "エントロピー", "熵"),
            "entropy of a query's weights, in nats (1 nat is 1.44 bits)",
            "H_i = - sum_j p_ij log p_ij",
            "Shannon 1948; over heads: Clark et al. 2019, 3.3",
            meanings=(
                "クエリの重みのエントロピー、単位はナット（1 ナットは 1.44 ビット）",
                "查询权重的熵，单位为奈特（1 奈特为 1.44 比特）",
            ),
            unit="nats",
            units=("nats", "ナット", "奈特"),
            high=None,
            most=("spreads its weight widest", "重みを最も広く分散させる", "权重分布最广"),
            least=("is the most focused", "最も集中している", "最为集中"),
        ),
        Statistic(
            "normalised_entropy",
            ("entropy, 0 to 1", "正規化エントロピー", "归一化熵"),
            "entropy / log of the number of keys that the mask allows: 1 where all weigh the same",
            "H_i / log n_i, n_i the number of keys that the mask allows query i",
            "Pielou 1966 (evenness)",
            meanings=(
                "エントロピー / マスクが許すキーの数の対数。すべての重みが等しいとき 1",
                "熵 / 掩码允许的键数的对数；权重全部相同时为 1",
            ),
            unit="0 to 1",
            most=(
                "comes nearest to the same weight for every key",
                "すべてのキーへの重みが最も均等に近い",
                "对各个键的权重最接近均等",
            ),
            least=(
                "is the most focused for the keys that it may look at",
                "見ることのできるキーの数に対して最も集中している",
                "相对于可看的键数最为集中",
            ),
        ),
        Statistic(
            "effective_tokens",
            ("effective tokens", "実効トークン数", "有效词元数"),
            "effective number of attended tokens, 1 / sum of squared weights",
            "1 / sum_j p_ij^2 = exp(Renyi entropy of order 2), 1 to n_i",
            "Renyi 1961; Hill 1973, N_2",
            meanings=("実効的に見ているトークンの数、1 / 重みの二乗和", "有效关注的词元数，1 / 权重平方和"),
            unit="tokens",
            units=TOKENS,
            high=None,
            most=("looks at the most tokens at once", "同時に見るトークンが最も多い", "同时看的词元最多"),
            least=("looks at the fewest tokens at once", "同時に見るトークンが最も少ない", "同时看的词元最少"),
        ),
        Statistic(
            "strongest",
            ("strongest weight", "最大の重み", "最大权重"),
            "the largest weight",
            "max_j p_ij",
            "-",
            meanings=("最大の重み", "最大的权重"),
            most=("holds most to one token at a time", "毎回 1 つのトークンに最も集中する", "每次最集中于一个词元"),
        ),
        Statistic(
            "confidence",
            ("confidence", "確信度", "置信度"),
            "the largest weight on a token that is not special",
            "max of p_ij over keys j that are not special",
            "over heads: Voita et al. 2019 (there without the end-of-sentence token alone)",
            meanings=("特殊トークンでないトークンへの最大の重み", "非特殊词元上的最大权重"),
            needs="tokens",
            most=(
                "holds most to one token of the text at a time",
                "毎回テキスト中の 1 つのトークンに最も集中する",
                "每次最集中于文本中的一个词元",
            ),
        ),
        Statistic(
            "previous",
            ("previous token", "直前のトークン", "前一个词元"),
            "weight on the token before",
            "p_i,i-1",
            "Clark et al. 2019, 3.1",
            meanings=("直前のトークンへの重み", "前一个词元上的权重"),
            needs="order",
            cell=-1,
            most=("looks most at the token before", "直前のトークンを最も強く見る", "最关注前一个词元"),
        ),
        Statistic(
            "next",
            ("next token", "直後のトークン", "后一个词元"),
            "weight on the token after",
            "p_i,i+1",
            "Clark et al. 2019, 3.1",
            meanings=("直後のトークンへの重み", "后一个词元上的权重"),
            needs="order",
            cell=1,
            most=("looks most at the token after", "直後のトークンを最も強く見る", "最关注后一个词元"),
        ),
        Statistic(
            "same",
            ("same token", "同じトークン", "同一词元"),
            "weight on the token itself",
            "p_ii",
            "Clark et al. 2019, 3.1",
            meanings=("トークン自身への重み", "词元自身上的权重"),
            needs="order",
            cell=0,
            most=("looks most at the token itself", "トークン自身を最も強く見る", "最关注词元自身"),
        ),
        Statistic(
            "first",
            ("first token", "先頭のトークン", "首个词元"),
            "weight on the first token",
            "p_i0",
            "Xiao et al. 2024 (attention sinks)",
            meanings=("先頭のトークンへの重み", "首个词元上的权重"),
            most=("looks most at the first token", "先頭のトークンを最も強く見る", "最关注首个词元"),
        ),
        Statistic(
            "cls",
            ("[CLS]", "[CLS]", "[CLS]"),
            "weight on [CLS]",
            "sum of p_ij over keys j that are [CLS], <s>, …",
            "Clark et al. 2019, 3.2",
            meanings=("[CLS] への重み", "[CLS] 上的权重"),
            mass="cls",
            most=("looks most at [CLS]", "[CLS] を最も強く見る", "最关注 [CLS]"),
        ),
        Statistic(
            "sep",
            ("[SEP]", "[SEP]", "[SEP]"),
            "weight on all [SEP] together",
            "sum of p_ij over keys j that are [SEP], </s>, …",
            "Clark et al. 2019, 3.2",
            meanings=("すべての [SEP] への重みの合計", "所有 [SEP] 上的权重之和"),
            mass="sep",
            most=("looks most at [SEP]", "[SEP] を最も強く見る", "最关注 [SEP]"),
        ),
        Statistic(
            "punctuation",
            ("punctuation", "句読点", "标点"),
            "weight on all punctuation together",
            "sum of p_ij over keys j that are punctuation",
            "Clark et al. 2019, 3.2",
            meanings=("すべての句読点への重みの合計", "所有标点上的权重之和"),
            mass="punctuation",
            most=("looks most at punctuation", "句読点を最も強く見る", "最关注标点"),
        ),
        Statistic(
            "rarest",
            ("rarest word", "最もまれな語", "最罕见的词"),
            "weight on the text's rarest word",
            "sum of p_ij over the tokens j of the rarest word: the one whose ids have the greatest sum of logarithms",
            "Voita et al. 2019 (there rare by counts)",
            meanings=("テキスト中で最もまれな語への重み", "文本中最罕见的词上的权重"),
            needs="tokens",
            mass="rarest",
            most=("looks most at the rarest word", "最もまれな語を最も強く見る", "最关注最罕见的词"),
        ),
        Statistic(
            "other_sentence",
            ("other text of the pair", "対のもう一方", "另一句"),
            "weight of a token of one text on the other text of a pair",
            "sum of p_ij over the other text's tokens",
            "-",
            meanings=("対の一方のトークンから、もう一方への重み", "一句中的词元对另一句的权重"),
            most=("looks most at the other text of a pair", "対のもう一方を最も強く見る", "最关注另一句"),
        ),
        Statistic(
            "offset",
            ("mean offset", "平均オフセット", "平均偏移"),
            "mean of key minus query, in tokens: negative where a head looks back",
            "sum_j p_ij (j - i)",
            "-",
            meanings=(
                "キーの位置 − クエリの位置の平均、単位はトークン。前方を見るヘッドでは負",
                "键的位置减查询的位置的平均值，以词元计；向前看的头为负",
            ),
            unit="tokens; negative looks back",
            units=TOKENS,
            low=None,
            high=None,
            needs="order",
            most=("looks furthest ahead on average", "平均して最も後方を見る", "平均向后看得最远"),
            least=("looks furthest back on average", "平均して最も前方を見る", "平均向前看得最远"),
        ),
        Statistic(
            "distance",
            ("mean distance", "平均距離", "平均距离"),
            "mean distance between query and key, in tokens",
            "sum_j p_ij abs(j - i)",
            "Vig and Belinkov 2019",
            meanings=("クエリとキーの距離の平均、単位はトークン", "查询与键的平均距离，以词元计"),
            unit="tokens",
            units=TOKENS,
            high=None,
            needs="order",
            most=("looks furthest away", "最も遠くを見る", "看得最远"),
            least=("stays nearest", "最も近くを見る", "看得最近"),
        ),
        Statistic(
            "norm",
            ("gathered length", "集めた長さ", "汇集长度"),
            "sum of |weight * v W_O|: how long the vectors are that a query gathers",
            r"sum_j \|\|p_ij v_j W_O\|\|",
            "Kobayashi et al. 2020 (its norms, summed over j)",
            meanings=(
                "|重み * v W_O| の和。クエリが集めるベクトルの長さ",
                "|权重 * v W_O| 之和：查询所汇集的向量的长度",
            ),
            unit="length, as hidden states",
            units=("length", "長さ", "长度"),
            high=None,
            needs="values",
            most=("gathers the longest vectors", "集めるベクトルが最も長い", "汇集的向量最长"),
            least=("gathers the shortest vectors", "集めるベクトルが最も短い", "汇集的向量最短"),
        ),
        Statistic(
            "norm_special",
            ("gathered from special", "特殊トークンの割合", "来自特殊词元"),
            "share of `norm` that comes from special tokens",
            r"sum of \|\|p_ij v_j W_O\|\| over special tokens j, divided by `norm`",
            "Kobayashi et al. 2020",
            meanings=("`norm` のうち特殊トークンによる割合", "`norm` 中来自特殊词元的比例"),
            unit="share, 0 to 1",
            needs="values",
            most=(
                "takes the largest share of what it gathers from special tokens",
                "集めるもののうち特殊トークンの割合が最も大きい",
                "汇集的内容中来自特殊词元的比例最大",
            ),
        ),
    )
}
"""Name -> statistic, in the order of every table and file."""

WEIGHTS_ONLY = tuple(name for name, statistic in CATALOG.items() if statistic.needs != "values")
"""The statistics that follow from weights and tokens alone."""

ON_PAGE = tuple(name for name in WEIGHTS_ONLY if CATALOG[name].needs != "tokens")
"""Those of them that the page shows, which measures what its filters leave by itself."""

CELLS = {name: statistic.cell for name, statistic in CATALOG.items() if statistic.cell is not None}
"""Statistic that is one weight of a row -> distance of its key from the query."""

MASSES = {name: statistic.mass for name, statistic in CATALOG.items() if statistic.mass}
"""Statistic that is the weight on all keys of one role -> the role."""


def need_values(names: Iterable[str]) -> tuple[str, ...]:
    """The statistics among `names` that need v and W_O."""
    return tuple(name for name in names if CATALOG[name].needs == "values")


def chosen(names: Iterable[str] | None, *, values: bool = True) -> tuple[str, ...]:
    """The requested statistics, in the order of CATALOG.

    Args:
        names: a name, several, or None for all.
        values: True if None includes those that need v and W_O.

    Raises:
        InputError: there is no such statistic, or `names` is empty.
    """
    if names is None:
        return tuple(CATALOG) if values else WEIGHTS_ONLY
    wanted = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (names,)
    unknown = [name for name in wanted if name not in CATALOG]
    if unknown or not wanted:
        name = f"unknown statistic {unknown[0]!r:.40}{meant(str(unknown[0]), CATALOG)}" if unknown else ""
        advice = f"use some of {', '.join(CATALOG)}; trace.head_distances() compares heads"
        raise InputError(name or "no statistic was named", where="names", advice=advice)
    return tuple(name for name in CATALOG if name in wanted)
