"""The strip of the home page: a sentence, what sixteen heads see in it, and the guess without each of them.

Its answers are recorded as the site is built, so that it answers at once; docs/strip.js shows them, and fetches the
model (live/strip-model.js) for a sentence that a reader types.
"""

from __future__ import annotations

import html
import json
from base64 import b64encode
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from headscope.model import Model

HEADS = tuple((layer, head) for layer in range(4) for head in range(4))
"""Of the bundled model."""
EXAMPLES = (
    ("She said to [MASK] father that she was ill.", (3, 3), "He said to [MASK] father that he was ill."),
    ("The horse ran away because [MASK] was afraid.", (3, 1), "The horses ran away because [MASK] were afraid."),
    (
        "The boys went to school because [MASK] had to learn.",
        (3, 3),
        "The boy went to school because [MASK] had to learn.",
    ),
)
"""A sentence, a head that turns its guess when it is silenced, and the sentence with a word swapped."""
MOST = 5
MODEL = "strip-model.js"
"""In the site's folder of live pages: the packed model and what runs it, as a script, for pages from a disk."""

WORDS = {
    "en": {
        "lead": "Type a sentence. A small BERT answers here, in your browser: sixteen heads look, and the model "
        "guesses the word under [MASK]. Click a head to silence it.",
        "box": "A sentence, with [MASK] for the word to guess",
        "try": "Try",
        "examples": ["her or his?", "he or it?", "they or he?"],
        "then": "then",
        "one": "silence its head",
        "swap": "swap a word",
        "all": "every head on",
        "recorded": "recorded answers",
        "loading": "loading the model, {mb} MB …",
        "failed": "The model can't be loaded here: these are recorded answers only.",
        "unfit": "This browser has no DecompressionStream: these are recorded answers only.",
        "took": "{n} tokens, {ms} ms",
        "guesses": "The model guesses {word}",
        "still": "Without {heads} it still guesses {word}: {before} → {after}",
        "turns": "Without {heads} the guess turns from {before} to {word}",
        "no_mask": "Put [MASK] where a word should be guessed.",
        "empty": "Type some words.",
        "heads": "Sixteen heads",
        "beside": "beside each: the guess without it",
        "under": "The word under [MASK]",
        "grey": "grey: with every head",
        "looks": "Above: what head {head} looks at from {word}. Rest on another head or word to see it.",
        "turning": "Heads of 16 that turn this guess when silenced:",
        "none": "None of the 16 heads turns this guess when silenced alone.",
        "off": "off",
        "silence": "Silence head {head}",
        "foot": [
            "{install} in a clone of the repository opens your own checkpoint",
            "{live} writes this as one file",
            "Nothing you type leaves this page",
        ],
    },
    "ja": {
        "lead": "文を入力すると、小さな BERT がブラウザーの中で答えます。"
        "16 個のヘッドが見る先と、[MASK] に入る単語の推測です。ヘッドをクリックすると無効化できます（モデルは英語）。",
        "box": "文。推測させる単語は [MASK] と書きます",
        "try": "例",
        "examples": ["her か his か", "he か it か", "they か he か"],
        "then": "次に",
        "one": "そのヘッドを無効化",
        "swap": "単語を替える",
        "all": "すべて有効に戻す",
        "recorded": "記録済みの答え",
        "loading": "モデルを読み込んでいます（{mb} MB）…",
        "failed": "ここではモデルを読み込めません。記録済みの答えだけを表示します。",
        "unfit": "このブラウザーには DecompressionStream がありません。記録済みの答えだけを表示します。",
        "took": "{n} トークン、{ms} ms",
        "guesses": "モデルの推測は {word}",
        "still": "{heads} がなくても推測は {word} のまま: {before} → {after}",
        "turns": "{heads} がないと、推測は {before} から {word} に変わります",
        "no_mask": "推測させたい場所に [MASK] と書いてください。",
        "empty": "単語を入力してください。",
        "heads": "16 個のヘッド",
        "beside": "横はそのヘッドなしでの推測",
        "under": "[MASK] に入る単語",
        "grey": "灰色: すべてのヘッドが有効なとき",
        "looks": "上は、ヘッド {head} が {word} から見ている先です。別のヘッドや単語に重ねると変わります。",
        "turning": "16 個のうち、無効化すると推測が変わるヘッド:",
        "none": "16 個のどのヘッドも、単独で無効化しても推測は変わりません。",
        "off": "無効",
        "silence": "ヘッド {head} を無効化",
        "foot": [
            "リポジトリのクローンで {install} を実行すると、手元のチェックポイントを開けます",
            "{live} でこれを 1 つのファイルに書き出せます",
            "入力した文はこのページの外に送信されません",
        ],
    },
    "zh": {
        "lead": "输入一个句子，一个小型 BERT 就在浏览器里作答："
        "十六个头各看向哪里，模型猜 [MASK] 处是什么词。点击一个头可将其屏蔽（模型为英文）。",
        "box": "一个句子，用 [MASK] 表示要猜的词",
        "try": "试试",
        "examples": ["her 还是 his？", "he 还是 it？", "they 还是 he？"],
        "then": "然后",
        "one": "屏蔽相关的头",
        "swap": "换一个词",
        "all": "恢复所有头",
        "recorded": "预先记录的答案",
        "loading": "正在加载模型（{mb} MB）…",
        "failed": "此处无法加载模型，只显示预先记录的答案。",
        "unfit": "此浏览器没有 DecompressionStream，只显示预先记录的答案。",
        "took": "{n} 个词元，{ms} 毫秒",
        "guesses": "模型猜的是 {word}",
        "still": "没有 {heads} 仍然猜 {word}：{before} → {after}",
        "turns": "没有 {heads}，猜测从 {before} 变为 {word}",
        "no_mask": "请在要猜的位置写上 [MASK]。",
        "empty": "请输入一些词。",
        "heads": "十六个头",
        "beside": "旁边是没有该头时的猜测",
        "under": "[MASK] 处的词",
        "grey": "灰色：所有头都在时",
        "looks": "上方：头 {head} 从 {word} 看向哪里。把指针移到别的头或词上即可查看。",
        "turning": "16 个头中，屏蔽后会改变猜测的头：",
        "none": "16 个头中，单独屏蔽任何一个都不会改变猜测。",
        "off": "已屏蔽",
        "silence": "屏蔽头 {head}",
        "foot": [
            "在仓库的克隆中执行 {install}，即可打开你自己的检查点",
            "{live} 可把它写成一个文件",
            "你输入的内容不会离开此页",
        ],
    },
}


def strip(language: str) -> str:
    """The strip as HTML: what it says without scripts, its words, and its recorded answers."""
    words = WORDS[language]
    first = answers()[0]
    (guess, share), *_ = first["guess"]
    said = words["guesses"].format(word=f"<b>{html.escape(guess)}</b> ({share:.2f})")
    held = {
        "words": words,
        "examples": [[text, *head, other] for text, head, other in EXAMPLES],
        "answers": answers(),
        "mb": size(),
    }
    script = json.dumps(held, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<section class="strip" lang="{language}" aria-label="{html.escape(words["try"])}" data-model="live:{MODEL}">'
        f"<p>{html.escape(words['lead'])}</p>"
        f'<div class="strip-box"><p>{html.escape(first["text"])}</p><p class="strip-answer">{said}</p></div>'
        f'<script type="application/json">{script}</script></section>'
    )


@cache
def answers() -> list[dict[str, Any]]:
    """What the bundled model says of the examples: as they are, with their head silenced, with a word swapped."""
    import headscope as hs

    model = hs.open()
    found = []
    for text, head, other in EXAMPLES:
        found += [answer(model, text), answer(model, text, head), answer(model, other)]
    return found


def answer(model: Model, text: str, *off: tuple[int, int]) -> dict[str, Any]:
    """One answer, as docs/strip.js computes it of what is typed.

    Returns:
        text; off: the silenced heads; words: as typed; special: tokens that the tokenizer added; weights: of every
        head, (16, S, S), as 16-bit shares of 1, in base64; mask: the place of the first [MASK]; guess: its likeliest
        words; without: "3.3" -> the likeliest word without that head, beside the silenced ones.
    """
    trace = model.trace(text, ablate=off)
    weights = np.stack([trace[layer, head].weights[:] for layer, head in HEADS])
    named = [
        text[slice(*span)] if span else token for token, span in zip(trace.tokens, trace.queries.spans, strict=True)
    ]

    def guess(*ablate: tuple[int, int], top: int = MOST) -> list[list[Any]]:
        filled = model.fill(text, ablate=ablate, top=top)[0]
        return [[token, round(share, 5)] for token, share in zip(filled.tokens, filled.probabilities, strict=True)]

    return {
        "text": text,
        "off": [list(head) for head in off],
        "words": named,
        "special": [bool(one) for one in trace.special],
        "weights": b64encode(np.round(weights * 65535).astype("<u2").tobytes()).decode(),
        "mask": trace.tokens.index("[MASK]"),
        "guess": guess(*off),
        "without": {f"{layer}.{head}": guess(*{*off, (layer, head)}, top=1)[0] for layer, head in HEADS},
    }


def size() -> str:
    """Megabytes of the packed model."""
    return f"{len(_packed()) / 1e6:.1f}"


@cache
def _packed() -> bytes:
    import headscope as hs
    from headscope.page.typed import packed

    return packed(hs.open())


def model_script() -> str:
    """What docs/strip.js loads to answer on what is typed: the encoder of headscope's live page, and the model."""
    encoder = (files("headscope") / "page" / "static" / "encoder.js").read_text(encoding="utf-8")
    return f'{encoder}\nvar headscopeModel = "{b64encode(_packed()).decode()}";\n'
