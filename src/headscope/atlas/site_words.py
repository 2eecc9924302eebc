"""English texts of a survey's data in Japanese and Chinese, for its site; names are the catalog's."""

from __future__ import annotations

from headscope.heads import CATALOG

SAID = """
spreads its weight widest · 重みを最も広く分散させる · 权重分布最广
is the most focused · 最も集中している · 最为集中
comes nearest to the same weight for every key · すべてのキーへの重みが最も均等に近い · 对各个键的权重最接近均等
is the most focused for the keys that it may look at · 見ることのできるキーの数に対して最も集中している · 相对于可看的键数最为集中
looks at the most tokens at once · 同時に見るトークンが最も多い · 同时看的词元最多
looks at the fewest tokens at once · 同時に見るトークンが最も少ない · 同时看的词元最少
holds most to one token at a time · 毎回 1 つのトークンに最も集中する · 每次最集中于一个词元
holds most to one token of the text at a time · 毎回テキスト中の 1 つのトークンに最も集中する · 每次最集中于文本中的一个词元
looks most at the token before · 直前のトークンを最も強く見る · 最关注前一个词元
looks most at the token after · 直後のトークンを最も強く見る · 最关注后一个词元
looks most at the token itself · トークン自身を最も強く見る · 最关注词元自身
looks most at the first token · 先頭のトークンを最も強く見る · 最关注首个词元
looks most at [CLS] · [CLS] を最も強く見る · 最关注 [CLS]
looks most at [SEP] · [SEP] を最も強く見る · 最关注 [SEP]
looks most at punctuation · 句読点を最も強く見る · 最关注标点
looks most at the rarest word · 最もまれな語を最も強く見る · 最关注最罕见的词
looks most at the other text of a pair · 対のもう一方を最も強く見る · 最关注另一句
looks furthest ahead on average · 平均して最も後方を見る · 平均向后看得最远
looks furthest back on average · 平均して最も前方を見る · 平均向前看得最远
looks furthest away · 最も遠くを見る · 看得最远
stays nearest · 最も近くを見る · 看得最近
gathers the longest vectors · 集めるベクトルが最も長い · 汇集的向量最长
gathers the shortest vectors · 集めるベクトルが最も短い · 汇集的向量最短
takes the largest share of what it gathers from special tokens · 集めるもののうち特殊トークンの割合が最も大きい · 汇集的内容中来自特殊词元的比例最大
entropy of a query's weights, in nats (1 nat is 1.44 bits) · クエリの重みのエントロピー、単位はナット（1 ナットは 1.44 ビット） · 查询权重的熵，单位为奈特（1 奈特为 1.44 比特）
entropy / log of the number of keys that the mask allows: 1 where all weigh the same · エントロピー / マスクが許すキーの数の対数。すべての重みが等しいとき 1 · 熵 / 掩码允许的键数的对数；权重全部相同时为 1
effective number of attended tokens, 1 / sum of squared weights · 実効的に見ているトークンの数、1 / 重みの二乗和 · 有效关注的词元数，1 / 权重平方和
the largest weight · 最大の重み · 最大的权重
the largest weight on a token that is not special · 特殊トークンでないトークンへの最大の重み · 非特殊词元上的最大权重
weight on the token before · 直前のトークンへの重み · 前一个词元上的权重
weight on the token after · 直後のトークンへの重み · 后一个词元上的权重
weight on the token itself · トークン自身への重み · 词元自身上的权重
weight on the first token · 先頭のトークンへの重み · 首个词元上的权重
weight on [CLS] · [CLS] への重み · [CLS] 上的权重
weight on all [SEP] together · すべての [SEP] への重みの合計 · 所有 [SEP] 上的权重之和
weight on all punctuation together · すべての句読点への重みの合計 · 所有标点上的权重之和
weight on the text's rarest word · テキスト中で最もまれな語への重み · 文本中最罕见的词上的权重
weight of a token of one text on the other text of a pair · 対の一方のトークンから、もう一方への重み · 一句中的词元对另一句的权重
mean of key minus query, in tokens: negative where a head looks back · キーの位置 − クエリの位置の平均、単位はトークン。前方を見るヘッドでは負 · 键的位置减查询的位置的平均值，以词元计；向前看的头为负
mean distance between query and key, in tokens · クエリとキーの距離の平均、単位はトークン · 查询与键的平均距离，以词元计
sum of |weight * v W_O|: how long the vectors are that a query gathers · |重み * v W_O| の和。クエリが集めるベクトルの長さ · |权重 * v W_O| 之和：查询所汇集的向量的长度
share of `norm` that comes from special tokens · `norm` のうち特殊トークンによる割合 · `norm` 中来自特殊词元的比例
weight, 0 to 1 · 重み、0〜1 · 权重，0 至 1
0 to 1 · 0〜1 · 0 至 1
share, 0 to 1 · 割合、0〜1 · 比例，0 至 1
length, as hidden states · 長さ、隠れ状態と同じ尺度 · 长度，与隐藏状态同一尺度
tokens; negative looks back · トークン。負は前方 · 词元；负值为向前看
masked-LM loss · マスク言語モデルの損失 · 掩码语言模型的损失
logit of the predicted class · 予測されたクラスのロジット · 预测类别的 logit
embedding (share of its length) · 埋め込み（長さに対する割合） · 嵌入（占其长度的比例）
embedding (1 - cosine) · 埋め込み（1 − コサイン） · 嵌入（1 − 余弦）
1 - cosine · 1 − コサイン · 1 − 余弦
share · 割合 · 比例
Weight on [CLS], on [SEP] and on punctuation · [CLS]、[SEP]、句読点への重み · [CLS]、[SEP] 和标点上的权重
Weight on the previous token, the same and the next · 直前、同じ、直後のトークンへの重み · 前一个、同一个和后一个词元上的权重
Entropy of every head · 各ヘッドのエントロピー · 每个头的熵
mean weight · 重みの平均 · 平均权重
mean entropy (nats) · エントロピーの平均（ナット） · 平均熵（奈特）
Heads that look alike lie together · 似ているヘッドは近くにある · 相似的头彼此靠近
damaged · 破損 · 已损坏
empty · 空 · 空文档
no field · フィールドなし · 没有字段
no text · テキストなし · 没有文本
no window · ウィンドウなし · 没有窗口
not Arrow · Arrow でない · 不是 Arrow
not CSV · CSV でない · 不是 CSV
not JSON · JSON でない · 不是 JSON
not Parquet · Parquet でない · 不是 Parquet
not UTF-8 · UTF-8 でない · 不是 UTF-8
not text · テキストでない · 不是文本
packed · 圧縮 · 已压缩
too long · 長すぎる · 过长
unreadable · 読み込み不可 · 无法读取
"""  # noqa: E501
"""Predicates (after “{head} は”, “{head} ”), meanings, units, outputs, figures, and why documents are refused."""


def site_words() -> dict[str, tuple[str, ...]]:
    """A text of the data -> the same in Japanese and in Chinese."""
    words = {english: tuple(others) for english, *others in (line.split(" · ") for line in SAID.split("\n") if line)}
    for statistic in CATALOG.values():
        words |= {names[0]: names[1:] for names in (statistic.names, statistic.units) if names}
        if statistic.described != statistic.meaning:
            both = zip(words[statistic.meaning], words[statistic.unit], strict=True)
            words[statistic.described] = tuple(f"{meaning}（{unit}）" for meaning, unit in both)
    return words
