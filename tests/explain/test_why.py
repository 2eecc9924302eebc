"""Scores taken apart: equal to the trace's scores in every family, naive pairs, and tokens masked for real."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headscope as hs
from commands import answer, run
from explain.tops import TEXT, readable
from headscope.errors import InputError, TraceError
from headscope.explain.propagation import hold
from headscope.runs.texts import as_input, as_traced
from naive_layers import MINILM
from random_models import FAMILIES

SENTENCE = "The animal didn't cross the street because it was too tired."


@pytest.mark.parametrize("stem", FAMILIES)
def test_pairs_add_up_to_the_score_over_the_mean_of_other_keys(tmp_path: Path, stem: str) -> None:
    readable(tmp_path, stem, "Model")
    trace = hs.open(tmp_path).trace(TEXT)
    for layer, head, query, key in ((0, 1, 3, 2), (1, 3, 4, 6), (2, 2, 7, 7)):
        result = trace[layer, head].why(query, key, check=False)
        row = np.asarray(trace[layer, head].scores[query], dtype=float)
        seen = np.isfinite(row) & (np.asarray(trace[layer, head].weights[query]) > 0)
        others = row[seen & (np.arange(len(row)) != key)].mean()
        assert result.score == pytest.approx(row[key], abs=1e-4)
        assert result.others == pytest.approx(others, abs=1e-4)
        assert result.weight == pytest.approx(float(trace[layer, head].weights[query, key]), abs=1e-5)
        size = np.abs(result.table).sum()
        assert result.table.sum() == pytest.approx(row[key] - others, abs=1e-5 * max(1, size))
        assert result.cells.sum() + result.rest == pytest.approx(result.difference, abs=1e-5 * max(1, size))
        assert result.table.shape == (len(trace) + 2, len(trace) + 2)


def test_pairs_are_the_naive_products_of_shares() -> None:
    model = hs.open(MINILM)
    trace = model.trace(SENTENCE)
    query, key = trace.tokens.index("it"), trace.tokens.index("animal")
    result = trace[3, 1].why(query, key)
    held = hold(model.encoder, as_input(as_traced(model, SENTENCE).encoded))
    shares = held.shares(below=3).astype(float)
    head = model.layers[3].heads[1]
    q, k = shares @ head.W_Q, shares @ head.W_K
    q[-1] += head.b_Q
    k[-1] += head.b_K
    others = [at for at in range(len(trace)) if at != key]
    expected = q[:, query] @ (k[:, key] - k[:, others].mean(1)).T / np.sqrt(q.shape[-1])
    np.testing.assert_allclose(result.table[:-1, :-1], expected, atol=1e-4)
    assert not result.table[-1].any()
    best = np.unravel_index(result.cells.argmax(), result.cells.shape)
    assert best == (query, key), "as in a trial by other code, which gave 1.04"
    assert result.cells[best] == pytest.approx(1.04, abs=0.15)
    assert {part.tokens for part in result.checks} == {(query,), (key,)}
    assert result.kappa > 1
    for part in result.checks:
        ids = [103 if at in part.tokens else index for at, index in enumerate(trace.ids)]
        weights = [
            float(np.asarray(one[3, 1].weights[query], dtype=float)[key]) for one in (trace, model.trace(ids=ids))
        ]
        odds = [np.log(weight / (1 - weight)) for weight in weights]
        assert part.change == pytest.approx(odds[0] - odds[1], abs=1e-3)


def test_what_is_refused(tmp_path: Path) -> None:
    readable(tmp_path, "ModernBert", "Model")
    model = hs.open(tmp_path)
    trace = model.trace(TEXT)
    with pytest.raises(InputError, match=r"doesn't see key 11"):
        trace[1, 0].why(0, 11)
    with pytest.raises(InputError, match="token 40"):
        trace[1, 0].why(40, 0)
    with pytest.raises(TraceError, match="silenced"):
        model.trace(TEXT, ablate={(0, 1)})[1, 0].why(1, 2)
    with pytest.raises(InputError, match="sees no other key"):
        model.trace(ids=[5])[0, 0].why(0, 0)


def test_the_command() -> None:
    result = hs.open(MINILM).trace(SENTENCE)[3, 1]
    query, key = result.trace.tokens.index("it"), result.trace.tokens.index("animal")
    expected = result.why(query, key)
    screen = run("why", MINILM, SENTENCE, "3.1", "it", "animal", env={"COLUMNS": "100"}).stdout
    assert f"{expected.difference:+.4f}" in screen
    assert "it × animal" in screen
    record = answer("why", MINILM, SENTENCE, "3.1", query, key)
    assert record["score"] == pytest.approx(expected.score)
    assert record["pairs"][0]["share"] == pytest.approx(expected.table[expected.strongest(1)[0]])
    wrong = run("why", MINILM, SENTENCE, "3", "it", "animal", code=2)
    assert "one head" in wrong.output
