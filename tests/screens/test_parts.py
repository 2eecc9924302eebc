"""The parts of a large trace, against the same numbers written out in fp64 from q, k and v."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import headscope as hs
from by_hand import Projection, axis_of, ends
from headscope.attention.scores import Mask
from headscope.errors import InputError
from headscope.heads import grid
from headscope.page import trace_parts
from headscope.page.trace_parts import header_bytes, is_large, part
from headscope.traces import LayerRecord, Trace

TOKENS, HEADS, KEY_HEADS, WIDTH = 23, 4, 2, 5
RANDOM = np.random.default_rng(7)
HIDDEN = np.arange(TOKENS) < TOKENS - 3
BIAS = RANDOM.normal(size=(HEADS, TOKENS, TOKENS)).astype(np.float32)
MASKS = {
    "everything": Mask(),
    "causal": Mask(causal=True),
    "window": Mask(window=(2, 4)),
    "padding": Mask(keys=HIDDEN),
    "bias": Mask(bias=BIAS),
}


def trace_with(mask: Mask, *, lse: bool = False) -> Trace:
    generator = np.random.default_rng(3)
    q = generator.normal(size=(HEADS, TOKENS, WIDTH)).astype(np.float32)
    k, v = (generator.normal(size=(KEY_HEADS, TOKENS, WIDTH)).astype(np.float32) for _ in range(2))
    record = LayerRecord(q, k, v, lse=None, scale=0.7, mask=mask)
    if lse:
        assert record.lse.shape == (HEADS, TOKENS)
    axis = axis_of(TOKENS, special=ends(TOKENS), words=tuple(n // 2 for n in range(TOKENS)))
    trace = Trace(model="random", queries=axis, layers=[record], outputs={}, text=None)
    return trace.replaced(source=Projection(HEADS, WIDTH, 11))


def weights(trace: Trace, head: int) -> np.ndarray:
    """The softmax as the paper has it, in fp64, every cell masked by hand."""
    record = trace.layers[0]
    scores = record.scale * record.q[head].astype(float) @ record.k[head // 2].astype(float).T
    mask = record.mask
    for i in range(TOKENS):
        for j in range(TOKENS):
            if mask.causal and j > i:
                scores[i, j] = -np.inf
            if mask.window is not None and not i - 2 <= j <= i + 4:
                scores[i, j] = -np.inf
            if mask.keys is not None and not HIDDEN[j]:
                scores[i, j] = -np.inf
            if mask.bias is not None:
                scores[i, j] += BIAS[head, i, j]
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def norms(trace: Trace, head: int) -> np.ndarray:
    v = trace.layers[0].v
    assert v is not None
    return np.asarray(np.linalg.norm(v[head // 2].astype(float) @ Projection(HEADS, WIDTH, 11).W_O(0, head), axis=-1))


def numbers(trace: Trace, **request: Any) -> np.ndarray:
    return np.frombuffer(part(trace, request), "<f4")


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("cells", [1 << 20, 60])
def test_a_picture_of_every_cell_is_the_head_s_weights(name: str, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_parts, "CELLS", cells)
    trace = trace_with(MASKS[name])
    for head in range(HEADS):
        box = [2, 20, 3, 21]
        whole = numbers(trace, want="tile", layer=0, head=head, box=box, height=100, width=100).reshape(18, 18)
        np.testing.assert_allclose(whole, weights(trace, head)[2:20, 3:21], atol=1e-6)
    assert not trace.layers[0].has_lse, "log-sum-exps of a long text take minutes"


@pytest.mark.parametrize(("height", "width", "every"), [(7, 5, 1), (23, 4, 1), (4, 23, 3), (50, 50, 4), (3, 3, 5)])
def test_a_picture_is_pooled_by_its_largest_cell(height: int, width: int, every: int) -> None:
    trace = trace_with(MASKS["causal"])
    picture = numbers(
        trace, want="tile", layer=0, head=1, box=[0, TOKENS, 0, TOKENS], height=height, width=width, every=every
    )
    rows = weights(trace, 1)[::every]
    tall, wide = min(height, len(rows)), min(width, TOKENS)
    expected = np.zeros((tall, wide))
    for i in range(len(rows)):
        for j in range(TOKENS):
            at = i * tall // len(rows), j * wide // TOKENS
            expected[at] = max(expected[at], rows[i, j])
    np.testing.assert_allclose(picture.reshape(tall, wide), expected, atol=1e-6)


@pytest.mark.parametrize("cells", [1 << 20, 30])
@pytest.mark.parametrize("normed", [False, True])
def test_words_are_joined_and_hidden_keys_redistributed(
    normed: bool, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean over a word's queries of the sum over a word's keys, divided by what is left of the row."""
    monkeypatch.setattr(trace_parts, "CELLS", cells)
    trace = trace_with(MASKS["everything"])
    words = [[1], [2, 3, 4], [5, 6], *([n] for n in range(7, 22))]
    joined = {"starts": np.cumsum([0, *map(len, words)]).tolist(), "members": [n for word in words for n in word]}
    size = len(words)
    request: dict[str, Any] = {"want": "tile", "layer": 0, "head": 2, "height": 100, "width": 100, "normed": normed}
    request |= {"rows": joined, "columns": joined, "renormalise": True}
    rows = weights(trace, 2)
    kept = rows / rows[:, 1:22].sum(-1, keepdims=True) * (norms(trace, 2) if normed else 1)
    expected = np.array([[kept[np.ix_(down, across)].sum(-1).mean() for across in words] for down in words])
    picture = numbers(trace, **request, box=[0, size, 0, size])
    np.testing.assert_allclose(picture.reshape(size, size), expected, rtol=1e-5)
    inner = numbers(trace, **request, box=[1, 4, 1, 6])
    np.testing.assert_allclose(inner.reshape(3, 5), expected[1:4, 1:6], rtol=1e-5)


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("kept", [None, list(range(1, 22))])
def test_the_weight_between_sets_of_tokens(lse: bool, name: str, normed: bool, kept: list[int] | None) -> None:
    trace = trace_with(MASKS[name], lse=lse)
    queries, keys = [4, 5, 9], [2, 3, 7]
    request = {"want": "masses", "layer": 0, "queries": queries, "keys": keys, "kept": kept, "normed": normed}
    expected = []
    for head in range(HEADS):
        rows = weights(trace, head)[queries]
        share = 1 if kept is None else rows[:, kept].sum(-1)
        mass = (rows[:, keys] * (norms(trace, head)[keys] if normed else 1)).sum(-1)
        expected.append((mass / share).mean())
    np.testing.assert_allclose(numbers(trace, **request), expected, rtol=1e-5)


def test_a_head_s_arrays_are_the_trace_s() -> None:
    trace = trace_with(MASKS["bias"])
    record = trace.layers[0]
    assert record.v is not None
    expected = np.concatenate([record.q[3].ravel(), record.k[1].ravel(), BIAS[3].ravel()])
    np.testing.assert_array_equal(numbers(trace, want="head", layer=0, head=3), expected)
    np.testing.assert_array_equal(numbers(trace, want="values", layer=0, head=3), record.v[1].ravel())
    np.testing.assert_allclose(numbers(trace, want="norms", layer=0, head=3), norms(trace, 3), rtol=1e-5)


def test_what_the_heads_write_at_a_query() -> None:
    trace = trace_with(MASKS["causal"]).replaced(ablated=frozenset({(0, 1)}))
    v = trace.layers[0].v
    assert v is not None
    written = np.stack(
        [weights(trace, head)[9] @ v[head // 2] @ Projection(HEADS, WIDTH, 11).W_O(0, head) for head in range(HEADS)]
    )
    written[1] = 0
    total = written.sum(0)
    sizes, shares = numbers(trace, want="writes", layer=0, query=9).reshape(2, HEADS)
    np.testing.assert_allclose(sizes, np.linalg.norm(written, axis=-1), rtol=1e-4)
    np.testing.assert_allclose(shares, written @ total / (total @ total), atol=1e-5)


@pytest.mark.parametrize("name", MASKS)
def test_statistics_of_some_heads_are_from_every_nth_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MEASURED_CELLS", TOKENS**2 // 2)
    monkeypatch.setattr(grid, "RUN", 2)
    trace = trace_with(MASKS[name])
    assert is_large(trace)
    answer = numbers(trace, want="measures", layer=0, heads=[1, 4])
    assert not trace.layers[0].has_lse
    broken, rest = answer[:3], answer[3:]
    assert not broken.any()
    names = list(grid.ON_PAGE)
    table = dict(zip(names, rest[: 3 * len(names)].reshape(-1, 3), strict=True))
    thumbs = rest[3 * len(names) :].reshape(3, TOKENS, TOKENS)
    rows = [row for row in range(TOKENS) if row // 2 % 3 == 0]
    seen = [row for row in rows if name != "padding" or HIDDEN[row]]
    for at, head in enumerate((1, 2, 3)):
        whole = weights(trace, head)
        assert table["strongest"][at] == pytest.approx(whole[seen].max(-1).mean(), rel=1e-5)
        logs = np.log(whole[seen], where=whole[seen] > 0, out=np.zeros_like(whole[seen]))
        assert table["entropy"][at] == pytest.approx(-(whole[seen] * logs).sum(-1).mean(), rel=1e-4)
        np.testing.assert_allclose((thumbs[at][rows] / 255) ** 2, whole[rows], atol=8e-3)


def test_heads_whose_numbers_are_nan_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MEASURED_CELLS", TOKENS**2 // 4)
    monkeypatch.setattr(grid, "RUN", 1)
    trace = trace_with(MASKS["causal"])
    record = trace.layers[0]
    q = record.q.copy()
    q[2, 1] = np.nan  # a query that isn't measured
    trace = trace.replaced(layers=[replace(record, q=q)])
    answer = numbers(trace, want="measures", layer=0, heads=[0, 4])
    assert answer[:4].tolist() == [0, 0, 1, 0]


def test_the_header_has_shapes_and_tokens_and_no_arrays() -> None:
    trace = trace_with(MASKS["padding"])
    raw = header_bytes(trace)
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    view = json.loads(header.pop("__metadata__")["headscope.view"])
    assert list(header) == ["layers.0.mask.keys"]
    assert view["away"]["layers.0.q"] == [HEADS, TOKENS, WIDTH]
    assert view["away"]["layers.0.k"] == [KEY_HEADS, TOKENS, WIDTH]
    assert view["norms"] is True
    assert len(view["labels"]) == TOKENS
    assert len(raw) < 8 + length + 2 * TOKENS
    assert not trace.layers[0].has_lse


BAD: list[dict[str, Any]] = [
    {},
    {"want": "all"},
    {"want": "head"},
    {"want": "head", "layer": 0, "head": HEADS},
    {"want": "head", "layer": -1, "head": 0},
    {"want": "head", "layer": True, "head": 0},
    {"want": "head", "layer": "0", "head": 0},
    {"want": "writes", "layer": 0, "query": TOKENS},
    {"want": "measures", "layer": 0, "heads": [2, 1]},
    {"want": "measures", "layer": 0, "heads": [0, HEADS + 1]},
    {"want": "masses", "layer": 0, "queries": [], "keys": [1]},
    {"want": "masses", "layer": 0, "queries": [1], "keys": [TOKENS]},
    {"want": "masses", "layer": 0, "queries": [1.5], "keys": [1]},
    {"want": "masses", "layer": 0, "queries": [2**70], "keys": [1]},
    {"want": "tile", "layer": 0, "head": 0, "box": [0, 1, 0], "height": 1, "width": 1},
    {"want": "tile", "layer": 0, "head": 0, "box": [0, TOKENS + 1, 0, 1], "height": 1, "width": 1},
    {"want": "tile", "layer": 0, "head": 0, "box": [3, 3, 0, 1], "height": 1, "width": 1},
    {"want": "tile", "layer": 0, "head": 0, "box": [0, 1, 0, 1], "height": None, "width": 1},
    {"want": "tile", "layer": 0, "head": 0, "box": [0, 1, 0, 1], "height": 1, "width": 1, "rows": [0]},
    {
        "want": "tile", "layer": 0, "head": 0, "box": [0, 1, 0, 1], "height": 1, "width": 1,
        "rows": {"starts": [0, 2, 2], "members": [0, 1]},
    },
]  # fmt: skip


@pytest.mark.parametrize("request_", BAD)
def test_a_request_that_makes_no_sense_raises(request_: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        part(trace_with(MASKS["everything"]), request_)


def test_a_picture_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_parts, "MOST_PIXELS", 100)
    box = [0, TOKENS, 0, TOKENS]
    with pytest.raises(InputError, match="23 x 23"):
        part(
            trace_with(MASKS["everything"]),
            {"want": "tile", "layer": 0, "head": 0, "box": box, "height": 50, "width": 50},
        )


def test_without_values_there_are_no_norms() -> None:
    trace = trace_with(MASKS["everything"])
    bare = trace.replaced(layers=[replace(trace.layers[0], v=None)])
    for request in (
        {"want": "values", "layer": 0, "head": 0},
        {"want": "norms", "layer": 0, "head": 0},
        {"want": "writes", "layer": 0, "query": 0},
    ):
        with pytest.raises(InputError, match="no values"):
            part(bare, request)
    assert isinstance(bare, hs.Trace)
