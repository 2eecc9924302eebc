"""Score terms against the formula written out cell by cell in fp64, for NumPy and torch, and in every consumer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import headscope as hs
from by_hand import axis_of, by_definition, roles_for
from headscope.attention.kernels import attend_with_lse
from headscope.attention.scores import Mask, attend, log_sum_exps, scores, softmax_rows
from headscope.attention.terms import TABLES, Terms
from headscope.errors import TraceError
from headscope.heads.fast import fast_statistics
from headscope.heads.reference import LayerArrays, reference_statistics
from headscope.traces import LayerRecord, Trace

HEADS, KV_HEADS, D = 4, 2, 8
SIZES = ((5, 5), (3, 9), (150, 150), (9, 4), (1, 1))
KINDS = (*TABLES, "cap", "all")


def made(kind: str, queries: int, keys: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, Terms]:
    """q, k, v and terms, all random, in fp64."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(heads, n, D)) for heads, n in ((HEADS, queries), (KV_HEADS, keys), (KV_HEADS, keys)))
    count = 7 if queries < 100 else 200
    tables = {
        "by_distance": rng.normal(size=(HEADS, count)),
        "by_key": rng.normal(size=(HEADS, keys)),
        "relative_keys": rng.normal(size=(HEADS, count, D)),
        "relative_queries": rng.normal(size=(HEADS, count, D)),
        "sinks": rng.normal(size=HEADS),
        "cap": 3.0,
    }
    chosen = {name: table for name, table in tables.items() if kind in (name, "all")}
    if chosen.keys() & {"by_distance", "relative_keys", "relative_queries"}:
        chosen["buckets"] = rng.integers(0, count, queries + keys - 1).astype(np.int32)
    terms = Terms(**chosen)
    assert terms.misfit(HEADS, queries, keys, D) is None
    return q, k, v, terms


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tile_of_any_queries_and_keys(kind: str, sizes: tuple[int, int]) -> None:
    q, k, v, terms = made(kind, *sizes)
    expected = by_definition(q, k, v, 0.3, terms=terms)[0]
    every = (np.arange(sizes[0]), np.arange(sizes[1]))
    parts = [every, (every[0][1:3], every[1][1:3]), (every[0][::-2], every[1][[0, -1, 0]]), (every[0][:1], every[1])]
    for rows, columns in parts:
        options = {"scale": 0.3, "rows": rows, "columns": columns, "sizes": sizes}
        ours = scores(q[:, rows], k[:, columns], terms=terms, **options)
        theirs = scores(
            torch.from_numpy(q[:, rows].copy()),
            torch.from_numpy(k[:, columns].copy()),
            terms=terms.mapped(torch.from_numpy),
            **options,
        )
        for tile in (ours, theirs.numpy()):
            np.testing.assert_allclose(tile, expected[:, rows][:, :, columns], atol=1e-12)
    part = terms.window(1, sizes[0] - 1, 0, sizes[1], sizes)
    np.testing.assert_allclose(scores(q[:, 1:], k, scale=0.3, terms=part), expected[:, 1:], atol=1e-12)
    np.testing.assert_allclose(scores(q[2:3], k[1:2], scale=0.3, terms=terms.of_head(2)), expected[2:3], atol=1e-12)


MASKS = {
    "everything": lambda n, m: Mask(),
    "causal": lambda n, m: Mask(causal=True, window=(4, None)),
    "keys": lambda n, m: Mask(keys=np.arange(m) % 3 != 1),
    "no key": lambda n, m: Mask(keys=np.zeros(m, dtype=bool)),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_contexts_lses_and_entropies(kind: str, mask: str) -> None:
    sizes = (30, 40)
    q, k, v, terms = made(kind, *sizes)
    rule = MASKS[mask](*sizes)
    _, p, expected, lse = by_definition(q, k, v, 0.3, rule, terms)
    spare = np.where(np.isfinite(lse), 1 - p.sum(-1), 0) if terms.sinks is not None else np.zeros(lse.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        nats = -np.nan_to_num(p * np.log(p)).sum(-1) - np.nan_to_num(spare * np.log(spare))
    in_torch = terms.mapped(torch.from_numpy)
    ours = attend(q, k, v, scale=0.3, mask=rule, terms=terms)
    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    for context, sums in (
        ours,
        attend(*tensors, scale=0.3, mask=rule, terms=in_torch),
        attend_with_lse(*tensors, scale=0.3, mask=rule, terms=in_torch),
    ):
        np.testing.assert_allclose(np.asarray(context), expected, atol=1e-12)
        np.testing.assert_allclose(np.asarray(sums), lse, atol=1e-12)
    np.testing.assert_allclose(log_sum_exps(q, k, scale=0.3, mask=rule, terms=terms), lse, atol=1e-4)
    for rows in softmax_rows(q, k, scale=0.3, mask=rule, terms=terms, cells=1, keep_scores=True):
        entropies = np.where(np.isneginf(rows.lse), 0, np.nan_to_num(rows.lse, neginf=0) - rows.energy)
        np.testing.assert_allclose(entropies, nats[:, rows.rows], atol=1e-11)
        shares = rows.sink_weights
        np.testing.assert_allclose(0 if shares is None else shares, spare[:, rows.rows], atol=1e-12)


@pytest.mark.parametrize("mask", list(MASKS)[:3])
@pytest.mark.parametrize("kind", KINDS)
def test_fast_statistics_are_the_definitions(kind: str, mask: str) -> None:
    """Over a batch of two rows with different terms; the definitions are taken from the weights themselves."""
    sizes = (30, 40)
    rule, token_roles = MASKS[mask](*sizes), roles_for(*sizes)
    rows = [made(kind, *sizes, seed=seed) for seed in (1, 2)]
    q, k, v = (torch.from_numpy(np.stack([row[part] for row in rows])) for part in range(3))
    W_O = np.random.default_rng(5).normal(size=(HEADS, D, 16))
    terms = [row[3].mapped(torch.from_numpy) for row in rows]
    fast = fast_statistics(LayerArrays(q, k, v, 0.3, rule, terms, torch.from_numpy(W_O)), [token_roles] * 2)
    for at, row in enumerate(rows):
        plain = reference_statistics(LayerArrays(*row[:3], 0.3, rule, row[3], W_O), token_roles)
        for name, values in plain.items():
            np.testing.assert_allclose(fast[name][at], values, atol=1e-6, err_msg=name)
        p = by_definition(*row[:3], 0.3, rule, row[3])[1]
        spare = 1 - p.sum(-1) if row[3].sinks is not None else np.zeros(p.shape[:2])
        seeing = np.isfinite(plain["entropy"])
        squares = 1 / (np.square(p).sum(-1) + np.square(spare))
        np.testing.assert_allclose(plain["effective_tokens"][seeing], squares[seeing], rtol=1e-9)
        np.testing.assert_allclose(plain["strongest"][seeing], p.max(-1)[seeing], rtol=1e-9)
        np.testing.assert_allclose(plain["first"][seeing], p[..., 0][seeing], atol=1e-12)


def a_trace(kind: str, size: int = 12) -> Trace:
    """Two layers with terms, in fp32."""
    layers = []
    for seed in range(2):
        q, k, v, terms = made(kind, size, size, seed)
        arrays = [part.astype(np.float32) for part in (q, k, v)]
        layers.append(
            LayerRecord(*arrays, None, 0.3, Mask(causal=bool(seed)), terms=terms.mapped(np.float32))  # type: ignore[arg-type]
        )
    return Trace(model="made", queries=axis_of("abcdefghijkl"), layers=layers)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_and_its_file(kind: str, dtype: str, tmp_path: Path) -> None:
    trace = a_trace(kind)
    path = trace.save(tmp_path / "terms.safetensors", dtype=dtype)
    again = hs.load(path)
    for layer in range(2):
        record = trace.layers[layer]
        s, p, context, lse = by_definition(record.q, record.k, record.v, 0.3, Mask(causal=bool(layer)), record.terms)
        np.testing.assert_allclose(trace[layer].weights[:], p, atol=1e-5)
        np.testing.assert_allclose(trace[layer].lse, lse, atol=1e-5)
        np.testing.assert_allclose(trace[layer].context, context, atol=1e-4)
        np.testing.assert_allclose(trace[layer, 3].scores[2, 1], s[3, 2, 1], atol=1e-5)
        np.testing.assert_allclose(again[layer].weights[:], p, atol=1e-5 if dtype == "fp32" else 2e-2)
        assert again[layer].terms.named == record.terms.named
    assert again.verify().agrees
    assert again.head_distances().array.shape == (8, 8)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"buckets": None}, "without the buckets"),
        ({"buckets": np.zeros(3, dtype=np.int32)}, "for 23 distances"),
        ({"buckets": np.full(23, 9, dtype=np.int32)}, "10 buckets"),
        ({"buckets": np.full(23, -1, dtype=np.int32)}, "bucket -1"),
        ({"by_key": np.zeros((3, 12))}, "by_key"),
        ({"by_distance": np.zeros((3, 7))}, "by_distance"),
        ({"relative_keys": np.zeros((4, 7, 9))}, "relative_keys"),
        ({"sinks": np.zeros(3)}, "sinks for 4 heads"),
        ({"cap": -1.0}, "soft cap of -1"),
        ({"cap": float("nan")}, "soft cap of nan"),
    ],
)
def test_tables_that_do_not_fit_raise(changed: dict[str, object], message: str) -> None:
    trace = a_trace("all")
    record = trace.layers[0]
    fields = {name: getattr(record.terms, name) for name in ("buckets", *TABLES, "cap")}
    broken = LayerRecord(record.q, record.k, record.v, None, 0.3, terms=Terms(**{**fields, **changed}))  # type: ignore[arg-type]
    with pytest.raises(TraceError, match=message):
        trace.replaced(layers=[broken])
