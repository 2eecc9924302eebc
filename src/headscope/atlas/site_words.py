"""English texts of a survey's data in Japanese and Chinese, for its site; those of a statistic are the catalog's."""

from __future__ import annotations

from headscope.heads import CATALOG

SAID = """
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
Weight on the previous token, the same and the next · 直前、同じ、直後のトークンへの重み · 前一、同一与后一词元的权重
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
"""
"""Units, outputs, figures, and why documents are refused."""


def site_words() -> dict[str, tuple[str, ...]]:
    """A text of the data -> the same in Japanese and in Chinese."""
    words = {english: tuple(others) for english, *others in (line.split(" · ") for line in SAID.split("\n") if line)}
    for statistic in CATALOG.values():
        own = (statistic.names, statistic.units, statistic.most, statistic.least)
        words |= {said[0]: said[1:] for said in own if said}
        units = words[statistic.unit]
        both = [f"{meaning}（{unit}）" for meaning, unit in zip(statistic.meanings, units, strict=True)]
        words[statistic.described] = statistic.meanings if statistic.described == statistic.meaning else tuple(both)
    return words
