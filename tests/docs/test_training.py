"""The bundled model's recipe: text without padding at every position, and a run that resumes where it was saved."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

RECIPE = str(Path(__file__).parents[2] / "training")


@pytest.fixture(scope="module", autouse=True)
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
def test_separated_tokens_become_english_again(separated: str, joined: str) -> None:
    from data import detokenise

    assert detokenise(separated) == joined


def test_batches_hold_whole_rows_of_one_length_and_reach_every_position() -> None:
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
def test_a_run_goes_on_where_it_was_saved(tmp_path: Path) -> None:
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
