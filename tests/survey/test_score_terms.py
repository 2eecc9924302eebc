"""Surveys of models whose scores have more than scale * q . k, against the statistics of captured traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet
from surveying import ALICE, OPTIONS
from transformers import (
    AutoTokenizer,
    BloomConfig,
    BloomModel,
    DebertaV2Config,
    DebertaV2Model,
    T5Config,
    T5EncoderModel,
)

import headscope as hs
from headscope.checkpoint.resolve import BUNDLED

TOKENIZER = AutoTokenizer.from_pretrained(BUNDLED)
WORDS = len(TOKENIZER)
MODELS = {
    "relative_queries": lambda: DebertaV2Model(
        DebertaV2Config(
            vocab_size=WORDS,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            relative_attention=True,
            position_buckets=8,
            pos_att_type=["c2p", "p2c"],
            norm_rel_ebd="layer_norm",
        )
    ),
    "by_distance": lambda: T5EncoderModel(
        T5Config(vocab_size=WORDS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    ),
    "by_key": lambda: BloomModel(BloomConfig(vocab_size=WORDS, hidden_size=32, n_layer=2, n_head=4)),
}


@pytest.mark.parametrize("term", MODELS)
def test_a_survey_counts_the_terms(term: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = MODELS[term]().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "word" not in name and "shared" not in name:
                parameter.mul_(5)
    text = ALICE[:600]
    survey = hs.survey(model, [text], out=tmp_path / "survey", tokenizer=TOKENIZER, labels=True, **OPTIONS)
    rows = parquet.read_table(sorted((survey.folder / "parts").iterdir())[0]).to_pylist()
    pieces = TOKENIZER(text, add_special_tokens=False)["input_ids"][:30]
    ids = [TOKENIZER.cls_token_id, *pieces, TOKENIZER.sep_token_id]
    with torch.no_grad(), hs.capture(model, tokenizer=TOKENIZER) as captured:
        model(input_ids=torch.tensor([ids]))
    assert term in captured.trace.layers[0].terms.named
    table = captured.trace.statistics(["entropy", "distance", "strongest", "previous"])
    for row in rows:
        if row["window"] == 0:
            for name in table:
                np.testing.assert_allclose(row[name], table[name][row["layer"], row["head"]], rtol=1e-4)
