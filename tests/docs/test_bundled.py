"""The bundled model: it is in the package, works offline, is what its card says, and its heads have formed.

What it has to reach was fixed before it was trained: training/evaluate.py asks the same.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import headscope as hs

FOLDER = Path(hs.__file__).parent / "models" / "tiny"
TREEBANK = Path(__file__).parents[2] / "docs" / "walkthroughs" / "pud" / "en_pud-first500.conllu"
SENTENCES = (Path(__file__).parents[1] / "data" / "alice.txt").read_text(encoding="utf-8").splitlines()
"""A book that neither the tokenizer nor the model has seen (Carroll 1865, public domain)."""
READS = pytest.mark.slow
"""Reads a book or a treebank for seconds; the weights are those that are committed."""


def test_it_opens_without_a_name_and_is_a_real_bert(bundled: hs.Model) -> None:
    assert bundled.name == "-"
    assert bundled.anatomy.base_class == "BertModel"
    assert bundled.anatomy.tasks == ("masked_lm",)
    assert bundled.anatomy.problems == ()
    assert bundled.anatomy.missing == ()
    assert bundled.parameters.dtypes == {"F16": bundled.parameters.total}
    sizes = bundled.anatomy.known()
    assert sizes.positions >= 256
    assert 4000 <= sizes.vocab <= 6000


def test_it_is_small_and_complete() -> None:
    names = {path.name for path in FOLDER.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"} <= names
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 8_000_000


def test_transformers_loads_it_unchanged_and_agrees(bundled: hs.Model) -> None:
    module, report = transformers.AutoModelForMaskedLM.from_pretrained(
        FOLDER, output_loading_info=True, dtype=torch.float32
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    text = "He took off his [MASK] and sat down by the fire."
    batch = tokenizer(text, return_tensors="pt")
    trace = bundled.trace(text)
    assert batch["input_ids"][0].tolist() == list(trace.ids)
    with torch.inference_mode():
        logits = module.eval()(**batch).logits[0].numpy()
    np.testing.assert_allclose(trace.outputs["logits"], logits, atol=1e-4)
    assert trace.verify().agrees


def masked_accuracy(bundled: hs.Model) -> float:
    """Top-1 accuracy as the card measures it: whole sentences up to 128 pieces, 15 % hidden, never [CLS] or [SEP]."""
    random = np.random.default_rng(0)
    mask = bundled.tokenizer.mask_id
    assert mask is not None
    windows, held = [], ""
    for sentence in SENTENCES:
        more = f"{held} {sentence}".strip()
        if held and len(bundled.tokenizer.encode(more).ids) > 128:
            windows.append(held)
            more = sentence
        held = more
    right = total = 0
    for text in [*windows, held]:
        encoded = bundled.tokenizer.encode(text)
        ids = np.array(encoded.ids[:255])
        hidden = np.flatnonzero((random.random(len(ids)) < 0.15) & ~np.array(encoded.special[:255]))
        truth = ids[hidden].copy()
        ids[hidden] = mask
        guesses = bundled.trace(ids=ids.tolist()).outputs["logits"].array[hidden].argmax(-1)
        right, total = right + int((guesses == truth).sum()), total + len(hidden)
    assert total > 5000
    return right / total


@READS
def test_it_guesses_hidden_pieces_of_a_book_it_never_saw(bundled: hs.Model) -> None:
    found = masked_accuracy(bundled)
    assert found >= 0.37
    said = json.loads((FOLDER / "evaluation.json").read_text())["held_out"]["accuracy"]
    assert said >= 0.38
    assert found == pytest.approx(said, abs=0.015), "the card draws other places to hide"


def test_its_card_says_where_it_comes_from_and_how_good_it_is() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    for word in ("accuracy", "perplexity", "public domain", "carroll-alice", "license"):
        assert word in card.lower(), word
    assert re.search(r"\d\d\.\d ?%", card)


@pytest.fixture(scope="module")
def atlas() -> hs.Survey:
    """Sentences that the model was not trained on, with their trees."""
    return hs.survey("-", TREEBANK, labels=True, report=False)


@READS
def test_its_heads_have_labels_and_find_relations(atlas: hs.Survey) -> None:
    """Most have a label, few rest on one token or look evenly, and one finds a relation that no offset does."""
    labels = atlas.labels.to_pylist()
    assert len(labels) == 16
    assert sum(row["label"] != "none" for row in labels) >= 12
    resting = (atlas["cls"].array > 0.7) | (atlas["sep"].array > 0.7)
    assert (resting | (atlas["normalised_entropy"].array > 0.9)).sum() <= 3
    gains = [
        row["accuracy_held_out"] - row["offset_accuracy"] for row in atlas.syntax.to_pylist() if row["count"] >= 150
    ]
    assert max(gains) >= 0.12


def test_heads_look_at_neighbours_in_transformers_too(bundled: hs.Model) -> None:
    """The weight on the token before and after, from eager attention, over sentences of the treebank."""
    module = transformers.AutoModel.from_pretrained(FOLDER, attn_implementation="eager", dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    lines = TREEBANK.read_text(encoding="utf-8").splitlines()
    sentences = [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")][:100]
    before, after = [], []
    for sentence in sentences:
        with torch.inference_mode():
            maps = module(**tokenizer(sentence, return_tensors="pt"), output_attentions=True).attentions
        weights = torch.cat(maps).numpy()  # (layers, heads, S, S)
        before.append(np.diagonal(weights, -1, 2, 3).mean(-1))
        after.append(np.diagonal(weights, 1, 2, 3).mean(-1))
    assert np.mean(before, axis=0).max() >= 0.9
    assert np.mean(after, axis=0).max() >= 0.6
