"""Surveys of models with terms in their scores, against captured traces; and the memory of a survey."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from surveying import ALICE, OPTIONS
from transformers import (
    AutoTokenizer,
    BloomConfig,
    BloomModel,
    GptOssConfig,
    GptOssModel,
    T5Config,
    T5EncoderModel,
)

import headscope as hs
from headscope.atlas.labels import evidence
from headscope.checkpoint.resolve import BUNDLED
from peak import Peak
from random_models import random_model
from small_bert import small_bert

TOKENIZER = AutoTokenizer.from_pretrained(BUNDLED)
WORDS = len(TOKENIZER)
SHAPE = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
EXPERTS = {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}
MODELS = {
    "relative_queries": lambda: random_model("DebertaV2", **SHAPE),
    "by_distance": lambda: T5EncoderModel(
        T5Config(vocab_size=WORDS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    ),
    "sinks": lambda: GptOssModel(GptOssConfig(**SHAPE, **EXPERTS, intermediate_size=48, sliding_window=8)),
    "by_key": lambda: BloomModel(BloomConfig(vocab_size=WORDS, hidden_size=32, n_layer=2, n_head=4)),
}


@pytest.mark.parametrize("term", MODELS)
def test_surveys_count_the_terms(term: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = MODELS[term]().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.mul_(50)
            elif parameter.dim() > 1 and "word" not in name and "shared" not in name:
                parameter.mul_(5)
    text = ALICE[:600]
    survey = hs.survey(model, [text], out=tmp_path / "survey", tokenizer=TOKENIZER, examples=8, **OPTIONS)
    rows = parquet.read_table(sorted((survey.folder / "parts").iterdir())[0]).to_pylist()
    encoding = TOKENIZER(text, add_special_tokens=False)
    ids = [TOKENIZER.cls_token_id, *encoding["input_ids"][:30], TOKENIZER.sep_token_id]
    with torch.no_grad(), hs.capture(model, tokenizer=TOKENIZER) as captured:
        model(input_ids=torch.tensor([ids]))
    assert term in captured.trace.layers[0].terms.named
    table = captured.trace.statistics(["entropy", "distance", "strongest", "previous"])
    for row in rows:
        if row["window"] == 0:
            for name in table:
                np.testing.assert_allclose(row[name], table[name][row["layer"], row["head"]], rtol=1e-4)
    # From word to word: the sum over the key's tokens, the mean over the query's.
    words = np.array([-1, *encoding.word_ids()[:30], -1])
    compared = 0
    for layer, head in np.ndindex(2, 4):
        weights = captured.trace[layer, head].weights[:]
        for example in survey.examples[layer, head]:
            if example.window == 0:
                cells = weights[words == example.query][:, words == example.key]
                np.testing.assert_allclose(example.weight, cells.sum(1).mean(), rtol=1e-4)
                compared += 1
    assert compared
    # The lines are read in a run of their own.
    for example, line in zip(survey.examples.table.to_pylist(), survey.lines.to_pylist(), strict=True):
        if example["key"] in line["numbers"]:
            weight = line["weights"][line["numbers"].index(example["key"])]
            assert weight == pytest.approx(example["weight"], rel=1e-4, abs=1e-7)


SENTENCES = 16
"""Documents: in twice as many, every head's lists of pairs are full, and every example has its window."""


ASKED: dict[str, Any] = {"length": 24, "threads": 1, "labels": True, "examples": 3}


def peak_of(model: str, documents: list[str], out: Path) -> tuple[int, int]:
    """The most bytes that Python and NumPy held at once, beyond what they held before; and how many parts it made."""
    gc.collect()  # what earlier tests left is collected when enough has been made since: not in one of two runs
    options = {**ASKED, "part_size": 2_000, "statistics": ["entropy", "first"]}
    with Peak() as peak:
        survey = hs.survey(model, documents, out=out, **options)
    return peak.bytes, len(survey.manifest["parts"])


DOCUMENTS = [ALICE[at : at + 110] for at in range(0, 110 * SENTENCES, 110)]


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model that has been surveyed, which imports much and keeps some for good."""
    folder = str(small_bert(tmp_path / "model"))
    hs.survey(folder, DOCUMENTS[:9], **ASKED)
    return folder


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "SAMPLE_WORDS", 150)  # so that the samples of words, too, are full at once
    twice, parts = peak_of(model, DOCUMENTS * 2, tmp_path / "twice")
    thrice, more_parts = peak_of(model, DOCUMENTS * 3, tmp_path / "thrice")
    assert more_parts > parts
    assert thrice <= 1.2 * twice  # 0.92 to 1.08 by what ran before; 1.27 where the samples have no bound
