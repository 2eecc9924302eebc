"""Published numbers of heads, on the published checkpoints: `pytest -m hub` where a model hub can be reached.

Where a figure depends on a corpus, the heads' identity and a tolerance are asserted, on another text.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headscope as hs

pytestmark = pytest.mark.hub

EMMA = Path(__file__).parents[2] / "docs" / "walkthroughs" / "emma.txt"


@pytest.fixture(scope="module")
def bert() -> hs.Model:
    return hs.open("google-bert/bert-base-uncased")


@pytest.fixture(scope="module")
def traces(bert: hs.Model) -> list[hs.Trace]:
    words = EMMA.read_text(encoding="utf-8").split()
    texts = [" ".join(words[at : at + 80]) for at in range(0, min(len(words), 1600), 80)]
    return bert.trace(texts, hidden_states=True)


def test_expansion_rates(bert: hs.Model) -> None:
    """Kobayashi et al. 2021, by their code: from the weights alone."""
    published = [0.901, 0.740, 0.632, 0.679, 0.911, 0.989, 0.919, 0.905, 0.948, 0.913, 0.932, 1.051]
    np.testing.assert_allclose([layer.expansion_rate for layer in bert.layers], published, atol=6e-4)


@pytest.mark.parametrize(
    ("kind", "published"),
    [("Attn-W", 96.41), ("Attn-N", 85.28), ("AttnRes-W", 48.21), ("AttnRes-N", 22.25), ("AttnResLn-N", 18.75)],
)
def test_mixing_ratios(traces: list[hs.Trace], kind: str, published: float) -> None:
    """Kobayashi et al. 2021, Table 1, in per cent, on Wikipedia; here within 4 points."""
    mean = 100 * np.mean([trace.mixing_ratio(kind).mean for trace in traces])
    assert mean == pytest.approx(published, abs=4)


def test_heads_on_the_previous_and_the_next_token(traces: list[hs.Trace]) -> None:
    """Clark et al. 2019, 3.1: more than half on the previous token in 4 heads, on the next in 5; layers from 0."""
    for name, layers in (("previous", [1, 3, 6, 7]), ("next", [0, 1, 1, 2, 5])):
        mean = np.nanmean([trace.statistics(name)[name].array for trace in traces], axis=0)
        assert sorted(np.argwhere(mean > 0.5)[:, 0].tolist()) == layers


def test_totals(bert: hs.Model) -> None:
    assert (len(bert.parameters), bert.parameters.total) == (199, 109_482_240)
    assert bert.all_parameters.total == 110_106_428
