"""Runs with several heads changed, in any way and in any layers: against transformers, changed by hooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headscope as hs
from explain.tops import TEXT, contexts_in_torch, in_torch, readable
from headscope.errors import InputError
from headscope.runs import engine
from headscope.runs.edits import Base, Edit
from headscope.runs.engine import NumpyRunner, base_readings
from headscope.runs.targets import choose
from headscope.runs.texts import as_input

TEXTS = (TEXT, "the dog sat on the mat")
OTHERS = ("the dog [MASK] off the hat and sat down !", "the cat took off her hat")


def sets(source: Base) -> list[frozenset[Edit]]:
    """Each way alone, in the first and the last layer, and sets of several ways in several layers."""
    options: dict[str, dict[str, Any]] = {
        "zero": {}, "mean": {}, "scale": {"factor": 0.5}, "patch": {"source": source}, "edge": {"edge": (3, 2)},
    }  # fmt: skip
    alone = [frozenset({Edit(layer, 1, way, **given)}) for way, given in options.items() for layer in (0, 2)]
    first = Edit(0, 3, "scale", factor=2.0)
    return [
        *alone,
        *(frozenset({first, Edit(2, 1, way, **given)}) for way, given in options.items()),
        frozenset({Edit(0, head, way, **given) for head, (way, given) in enumerate([*options.items()][:4])}),
        frozenset({first, Edit(1, 0), Edit(1, 2, "mean"), Edit(2, 2, "edge", edge=(0, 1))}),
    ]


@pytest.mark.parametrize("contexts", [True, False])
def test_sets_of_changes_are_those_of_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contexts: bool) -> None:
    """Whole states, and targets that read some rows; side by side, and one run after the other."""
    checkpoint = readable(tmp_path, "Bert", "ForMaskedLM")
    model, module = hs.open(tmp_path), checkpoint.module
    runner = NumpyRunner(model)
    encoded = [model.tokenizer.encode(text) for text in TEXTS]
    others = [model.tokenizer.encode(text) for text in OTHERS]
    source = runner.base([as_input(text) for text in others])
    there = [contexts_in_torch(module, list(text.ids)) for text in others]
    base = runner.base([as_input(text) for text in encoded], contexts=contexts)
    edits = sets(source)
    expected = [
        [in_torch(module, list(text.ids), changes, other) for text, other in zip(encoded, there, strict=True)]
        for changes in edits
    ]
    places = [np.array([2, 3]), np.array([7])]
    for which, changes in enumerate(edits):  # the last layer computes these rows alone, where no change needs others
        ((_, hidden),) = runner.states(base, [changes], places)
        for states, whole, at in zip(hidden, expected[which], places, strict=True):
            np.testing.assert_allclose(states[0], whole[at], atol=2e-5)
    wanted = [("word", "mat"), ("embedding_distance",)]
    targets = [
        choose(model, text, base.last[rows], name) for text, rows, name in zip(encoded, base.rows, wanted, strict=True)
    ]
    for most in (4096, 1):
        monkeypatch.setattr(engine, "BATCH_TOKENS", most)
        seen = set()
        for runs, hidden in runner.states(base, edits):
            seen |= set(runs)
            for at, which in enumerate(runs):
                for text, states in enumerate(hidden):
                    np.testing.assert_allclose(states[at], expected[which][text], atol=2e-5)
        assert seen == set(range(len(edits)))
        for asked in ([targets[0], targets[0]], targets):
            for which, numbers in enumerate(runner.run(base, edits, asked).values):
                for text, (number, target) in enumerate(zip(numbers, asked, strict=True)):
                    last = expected[which][text]
                    vector = last.astype(float).mean(0)
                    if target.kind == "word":
                        truth = float(model.tops.masked_lm(last[target.row : target.row + 1])[0, target.index])
                    else:
                        truth = 1 - float(vector @ target.direction) / float(np.linalg.norm(vector))
                    assert number == pytest.approx(truth, abs=2e-5)


def test_a_pass_with_edits_is_a_base_itself(tmp_path: Path) -> None:
    """What is changed in the base stays changed in its runs, also in the layer that they start in and in later ones."""
    checkpoint = readable(tmp_path, "Bert", "ForMaskedLM")
    model = hs.open(tmp_path)
    runner, encoded = NumpyRunner(model), model.tokenizer.encode(TEXT)
    gone = frozenset({Edit(0, 1), Edit(1, 2, "mean"), Edit(2, 0, "edge", edge=(0, 1))})
    for contexts in (True, False):
        base = runner.base([as_input(encoded)], edits=gone, contexts=contexts)
        whole = in_torch(checkpoint.module, list(encoded.ids), gone, [])
        np.testing.assert_allclose(base.last, whole, atol=2e-5)
        target = choose(model, encoded, base.last, ("embedding",))
        assert base_readings(model, base, [target]).values == pytest.approx(1)
        for more in (Edit(0, 0), Edit(1, 1), Edit(2, 3, "edge", edge=(3, 0))):
            ((_, (states,)),) = runner.states(base, [frozenset({more})])
            np.testing.assert_allclose(
                states[0], in_torch(checkpoint.module, list(encoded.ids), gone | {more}, []), atol=2e-5
            )


def test_refusals(tmp_path: Path) -> None:
    readable(tmp_path, "Bert", "ForMaskedLM")
    model = hs.open(tmp_path)
    runner = NumpyRunner(model)
    text, shorter = (as_input(model.tokenizer.encode(words)) for words in (TEXT, "the cat"))
    base, other, bare = runner.base([text]), runner.base([shorter]), runner.base([text], contexts=False)
    for edits, message in (
        ({Edit(0, 1), Edit(0, 1, "mean")}, "in two ways"),
        ({Edit(3, 0)}, "no layer 3"),
        ({Edit(0, 4)}, "no head 4"),
        ({Edit(0, 0, "halve")}, "can't be changed by 'halve'"),
        ({Edit(0, 0, "patch")}, "without what it needs"),
        ({Edit(0, 0, "edge")}, "without what it needs"),
        ({Edit(0, 0, "edge", edge=(0, 99))}, "no token 99"),
        ({Edit(0, 0, "patch", source=other)}, "of other texts"),
        ({Edit(0, 0, "patch", source=bare)}, "without contexts"),
        (set(), "no head"),
    ):
        with pytest.raises(InputError, match=message):
            [*runner.states(base, [frozenset(edits)])]
