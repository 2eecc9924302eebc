"""Tokens that heads write: loops over single heads' promoted tokens, a head that was built to write, random heads."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from surveying import ALICE, OPTIONS
from test_survey_effects import corpus, naive_masks, naive_windows
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

import headscope as hs
from explain.tops import WORDS, readable
from headscope.atlas import writes
from headscope.atlas.wording import writes_sentences
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import InputError, UnsupportedError
from peak import Peak
from random_models import random_model
from small_bert import small_bert

LENGTH = 16
WRITES = {**OPTIONS, "statistics": "entropy", "length": LENGTH, "writes": 9}


def naive_rows(folder: Path, count: int) -> list[dict[str, Any]]:
    """The table, from every head's promoted tokens at every mask, one after the other; windows are halved in turn."""
    model = hs.open(folder)
    windows = sorted(naive_windows(folder, count), key=lambda window: (window[0], window[2]))
    heads = list(np.ndindex(model.anatomy.known().layers, model.anatomy.known().heads))
    halves: tuple[list[Any], list[Any]] = ([], [])
    counts: Counter[int] = Counter()
    for order, (*_, ids) in enumerate(windows):
        places = naive_masks(ids)
        masked = [model.tokenizer.mask_id if place in places else index for place, index in enumerate(ids)]
        trace = model.trace(ids=masked)
        halves[order % 2].append(
            [(ids[place], {head: trace[head].promotes(place).effects for head in heads}) for place in places]
        )
        if order % 2 == 0:
            counts.update(ids[1:-1])
    f = {token: count / counts.total() for token, count in counts.items()}
    found = [token for window in halves[0] for token, _ in window]
    candidates = sorted(token for token, count in Counter(found).items() if count >= 2)

    def gain(head: tuple[int, int], token: int, effects: Any, R: list[int]) -> float:
        """log2 of p(token) over f(token)."""
        e = effects[head]
        Z = sum(f[v] * math.exp(e[v]) for v in R) + 1 - sum(f[v] for v in R)
        return ((float(e[token]) if token in R else 0) - math.log(Z)) / math.log(2)

    rows = []
    for head in heads:
        alone = {
            v: sum(gain(head, token, effects, [v]) for window in halves[0] for token, effects in window) / len(found)
            for v in candidates
        }
        R = sorted((v for v in candidates if alone[v] > 0), key=lambda v: -alone[v])[:10]
        held_out = [[gain(head, token, effects, R) for token, effects in window] for window in halves[1]]
        sums, sizes = np.array([sum(of) for of in held_out]), np.array([len(of) for of in held_out])
        ratio, n = sums.sum() / sizes.sum(), len(sums)
        error = math.sqrt(n / (n - 1) * ((sums - ratio * sizes) ** 2).sum()) / sizes.sum()
        rows.append({"R": R, "gains": [alone[v] for v in R], "bits": ratio, "error": error, "masked": sizes.sum()})
    return rows


def test_they_equal_loops_over_single_heads(tmp_path: Path) -> None:
    readable(tmp_path, "Bert", "ForMaskedLM")
    survey = hs.survey(tmp_path, corpus(), **{**WRITES, "writes": 20})
    rows, naive = survey.writes.to_pylist(), naive_rows(tmp_path, 20)
    assert len(rows) == len(naive)
    for row, expected in zip(rows, naive, strict=True):
        assert row["tokens"] == [hs.open(tmp_path).tokenizer.token(v) for v in expected["R"]]
        np.testing.assert_allclose(row["gains"], expected["gains"], rtol=1e-3, atol=1e-6)
        assert row["bits"] == pytest.approx(expected["bits"], rel=1e-3, abs=1e-6)
        half = 2.262 * expected["error"]  # t with 9 degrees of freedom
        assert [row["low"], row["high"]] == pytest.approx([row["bits"] - half, row["bits"] + half], rel=1e-3, abs=1e-6)
        assert (row["masked"], row["windows"], row["over"]) == (expected["masked"], 10, "windows")
        assert row["sure"] == (row["low"] >= 0.001 and bool(row["tokens"]))
    assert max(len(row["tokens"]) for row in rows) >= 2
    assert max(abs(row["bits"]) for row in rows) > 1e-3


def built(folder: Path) -> Path:
    """A BERT of one layer, with nothing but its heads: 0 writes “mat” after “cat”, “hat” after “dog”; 1, always “the”.

    Token v's embedding is the unit vector v, the heads look evenly, and the masked-LM head reads the unit vectors.
    """
    readable(folder, "Bert", "ForMaskedLM")
    settings = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(vocab_size=len(WORDS), **settings, max_position_embeddings=32)
    model = BertForMaskedLM(config)
    layer, head = model.bert.encoder.layer[0], model.cls.predictions
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if name.endswith("LayerNorm.weight") else 0.0)
        model.bert.embeddings.word_embeddings.weight[:] = torch.eye(64)[: len(WORDS)]
        head.transform.dense.weight[:] = torch.eye(64)
        head.transform.dense.bias[:] = 3  # where the activation's slope is 1
        value, out = layer.attention.self.value.weight, layer.attention.output.dense.weight
        for at, (key, written) in enumerate((("cat", "mat"), ("dog", "hat"), ("[CLS]", "the"))):
            place = at if at < 2 else 32
            value[place, WORDS.index(key)] = 1
            out[WORDS.index(written), place] = 2
    model.save_pretrained(folder)
    return folder


def test_a_head_that_was_built_to_write_is_found(tmp_path: Path) -> None:
    """With the two words that it writes; the one that always writes the same frequent word predicts nothing."""
    drawn = np.random.default_rng(5)
    others = ["the", "the", "the", "sat", "on", "she", "and"]
    texts = []
    for number in range(400):
        key, written = (("cat", "mat"), ("dog", "hat"))[number // 2 % 2]
        words = [*drawn.choice(others, size=4), key, *[written] * 6]
        texts.append(" ".join(drawn.permutation(words)))
    survey = hs.survey(built(tmp_path), texts, **{**WRITES, "writes": 400})
    writer, other = survey.writes.to_pylist()
    assert (writer["sure"], sorted(writer["tokens"][:2])) == (True, ["hat", "mat"])
    assert writer["low"] > 0.05
    assert min(writer["gains"][:2]) > 5 * max([*writer["gains"][2:], 0])
    assert not other["sure"]
    named = survey.table().facts["writes"]
    assert named == {(0, 0): " ".join(writer["tokens"]), (0, 1): ""}
    assert hs.compare(survey, survey).changes.facts["writes_b"] == named
    assert f"head 0.0 raises {' '.join(writer['tokens'][:5])}" in writes_sentences(survey.writes)[0]
    assert (other["over"], other["documents"], other["windows"]) == ("documents", 200, 200)


def test_random_heads_write_nothing(tmp_path: Path) -> None:
    """32 heads with random weights over a text: none is said to predict it."""
    shutil.copytree(BUNDLED, tmp_path, dirs_exist_ok=True)
    settings = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 64}
    vocabulary = len(AutoTokenizer.from_pretrained(tmp_path))
    module = random_model("Bert", "ForMaskedLM", **settings, vocab_size=vocabulary, max_position_embeddings=64)
    module.save_pretrained(tmp_path)
    survey = hs.survey(tmp_path, [ALICE[:60_000]], **{**WRITES, "max_document": 10**6, "length": 64, "writes": 300})
    rows = survey.writes.to_pylist()
    assert len(rows) == 32
    assert max(len(row["tokens"]) for row in rows) == writes.WORDS
    assert [row for row in rows if row["sure"]] == []


def test_memory_is_that_of_a_batch(tmp_path: Path) -> None:
    """Four times as many windows take little more: their ids, and a number for each head of each."""
    model, texts = small_bert(tmp_path / "model"), [ALICE[start : start + 110] for start in range(0, 5500, 110)]
    options = {**OPTIONS, "length": 24, "statistics": "entropy", "batch_tokens": 240}

    def peak(count: int) -> int:
        with Peak() as held:
            hs.survey(model, texts, **options, writes=count)
        return held.bytes

    hs.survey(model, texts, **options, writes=72)  # imports and caches, which to trace takes longer than the test
    assert peak(72) <= 1.3 * peak(18)  # 1.1; 1.5 without batches


def test_what_cannot_be_told_is_refused(tmp_path: Path) -> None:
    without = readable(tmp_path / "without", "Bert", "Model").folder
    with pytest.raises(UnsupportedError, match="no masked-LM head; on top of BertModel it has nothing"):
        hs.survey(without, corpus(), out=tmp_path / "out", **WRITES)
    pre_norm = readable(tmp_path / "pre", "MegatronBert", "ForMaskedLM").folder
    with pytest.raises(UnsupportedError, match="norms come before its sums"):
        hs.survey(pre_norm, corpus(), out=tmp_path / "out", **WRITES)
    made = readable(tmp_path / "with", "Bert", "ForMaskedLM")
    with pytest.raises(InputError, match="writes run the model from its checkpoint, and a live model was passed"):
        hs.survey(made.module, corpus(), tokenizer=AutoTokenizer.from_pretrained(made.folder), writes=2)
    with pytest.raises(InputError, match="the survey has no writes"):
        _ = hs.survey(made.folder, corpus(), **OPTIONS).writes
    assert not list(tmp_path.rglob("part-*"))


def test_one_window(tmp_path: Path) -> None:
    """Nothing is held out, so nothing is sure."""
    readable(tmp_path, "Bert", "ForMaskedLM")
    survey = hs.survey(tmp_path, ["the cat sat on the mat"], **WRITES)
    for row in survey.writes.to_pylist():
        assert (row["bits"], row["low"], row["sure"], row["windows"]) == (None, None, False, 0)
