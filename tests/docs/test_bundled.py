"""The bundled model: it is in the package, works offline, is what its card says, and its heads have formed.

What it has to reach was fixed before it was trained: training/evaluate.py asks the same.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def test_it_is_small() -> None:
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


def test_heads_look_at_neighbours_in_transformers_too() -> None:
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


# The recipe it was trained by: text without padding at every position, and a run that resumes where it was saved.


RECIPE = str(Path(__file__).parents[2] / "training")


@pytest.fixture
def recipe() -> Iterator[None]:
    """The recipe's modules have short names; they are importable only while these tests run."""
    sys.path.insert(0, RECIPE)
    yield
    sys.path.remove(RECIPE)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(RECIPE):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("separated", "joined"),
    [
        ("`` I did n't , '' said Emma 's father .", "\"I didn't,\" said Emma's father."),
        ("the sisters ' house", "the sisters' house"),
        ("We hold these truths, as they are.", "We hold these truths, as they are."),
    ],
)
def test_separated_tokens_become_english_again(recipe: None, separated: str, joined: str) -> None:
    from data import detokenise

    assert detokenise(separated) == joined


def test_batches_hold_whole_rows_of_one_length_and_reach_every_position(recipe: None) -> None:
    from tokenizer import CLS, MAX_LENGTH, SEP

    from data import blocks, endless

    random = np.random.default_rng(0)
    documents = [[list(random.integers(10, 90, length)) for length in random.integers(2, 40, 200)]]
    running = np.concatenate([np.array(sentence) for sentence in documents[0]])
    seen = np.zeros(MAX_LENGTH, dtype=int)
    for stream in (blocks(running, 32, 512, random), endless(documents, 512, random)):
        for _ in range(40):
            batch = next(stream)
            assert batch.ids.shape == batch.types.shape == batch.positions.shape
            assert (batch.ids[:, 0] == CLS).all()
            assert (batch.ids[:, -1] == SEP).all()
            assert (batch.positions == np.arange(batch.ids.shape[1])).all()
            moved = batch.moved(random)
            assert (moved.positions[:, 0] == 0).all()
            assert (np.diff(moved.positions[:, 1:], axis=1) == 1).all()
            np.add.at(seen, moved.positions.ravel(), 1)
    assert seen.min() > 0
    assert len(seen) == MAX_LENGTH


@pytest.mark.slow  # Muon multiplies in bf16, which takes ten times as long on processors without it
def test_a_run_goes_on_where_it_was_saved(recipe: None, tmp_path: Path) -> None:
    from model import WIDTH
    from train import Recipe, Run, Text, train

    random = np.random.default_rng(0)
    documents = [[list(random.integers(10, 90, 30)) for _ in range(60)]]
    running = np.concatenate([np.array(sentence) for sentence in documents[0]])
    text = Text(running, documents, [documents[0][:4]])
    counts = torch.from_numpy(np.bincount(running, minlength=100))
    words = torch.from_numpy(random.normal(size=(100, WIDTH))).float()

    class Previous:
        """A teacher whose heads all look at the token before."""

        def weights(self, batch: Any, masked: torch.Tensor) -> list[torch.Tensor]:
            rows, size = batch.ids.shape
            before = torch.eye(size)[[0, *range(size - 1)]]
            return [before.expand(rows, 4, size, size)] * 4

    def run_to(steps: int) -> tuple[Run, int, dict[str, torch.Tensor]]:
        recipe = Recipe(steps=4, tokens=256, report_every=1, validate_every=1)
        run = Run.open(tmp_path, recipe, counts, words)
        start, before = run.step, {name: value.clone() for name, value in run.model.state_dict().items()}
        train(run, recipe, text, Previous(), until=steps)
        return run, start, before

    first, start, _ = run_to(1)
    assert start == 0
    assert first.step == 1
    second, start, before = run_to(2)
    assert start == first.step
    for name, value in first.model.state_dict().items():
        torch.testing.assert_close(before[name], value, rtol=0, atol=0)
    assert [point.step for point in second.curve] == [1, 2]
    assert all(point.validation for point in second.curve)
