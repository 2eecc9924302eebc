"""A query that can't see a key: the formula against a softmax with that key masked, in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headscope.attention.scores import EVERYTHING, Mask
from headscope.errors import InputError
from headscope.results.arrays import TokenAxis
from headscope.traces import LayerRecord, Trace

SCALE = 0.5


def trace_of(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Mask = EVERYTHING) -> Trace:
    size = q.shape[1]
    axis = TokenAxis(("a",) * size, (1,) * size, (0,) * size, (False,) * size, (None,) * size, (None,) * size)
    return Trace(model="x", queries=axis, layers=[LayerRecord(q, k, v, None, SCALE, mask)], outputs={})


def arrays(size: int, width: float) -> list[np.ndarray]:
    generator = np.random.default_rng(size)
    return [(generator.normal(size=(2, size, 4)) * width).astype(np.float32) for _ in range(3)]


@pytest.mark.parametrize("width", [1.0, 4.0])
@pytest.mark.parametrize("mask", [EVERYTHING, Mask(causal=True)])
def test_every_edge_is_a_masked_softmax(mask: Mask, width: float) -> None:
    q, k, v = arrays(6, width)
    trace = trace_of(q, k, v, mask)
    allowed = torch.ones(6, 6).tril().bool() if mask.causal else torch.ones(6, 6).bool()
    heavy = 0
    for query in range(6):
        for key in range(6):
            if mask.causal and query == key == 0:
                continue
            may = allowed.clone()
            may[query, key] = False
            scores = torch.tensor(q[1]).double() @ torch.tensor(k[1]).double().T * SCALE
            weights = scores.masked_fill(~may, float("-inf")).softmax(-1)
            expected = (weights @ torch.tensor(v[1]).double())[query].numpy()
            np.testing.assert_allclose(trace[0, 1].knockout(query, key), expected, atol=2e-5 * width)
            heavy += trace[0, 1].weights[query, key] > 0.5
    assert heavy


def test_a_weight_of_nearly_1_is_not_subtracted() -> None:
    q, k, v = arrays(3, 1.0)
    k[0, 0] = q[0, 0] * 60
    trace = trace_of(q, k, v)
    assert trace[0, 0].weights[0, 0] > 1 - 1e-6
    scores = q[0, 0].astype(float) @ k[0, 1:].astype(float).T * SCALE
    rest = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(trace[0, 0].knockout(0, 0), rest @ v[0, 1:], rtol=1e-5)


def test_refusals() -> None:
    trace = trace_of(*arrays(3, 1.0), Mask(causal=True))
    with pytest.raises(InputError, match="key 0 is the only one that query 0 sees"):
        trace[0, 0].knockout(0, 0)
    with pytest.raises(InputError, match="no query 3"):
        trace[0, 0].knockout(3, 0)
    with pytest.raises(InputError, match="no key -4"):
        trace[0, 0].knockout(0, -4)
    unseen = trace[0, 0].knockout(0, 2)
    np.testing.assert_allclose(unseen, trace[0, 0].context[0], atol=1e-6)
