"""The mathematics against plain definitions in fp64: NumPy, torch, fused kernels; activations against transformers'."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.activations import ACT2FN

import headscope as hs
from by_hand import axis_of, by_definition, roles_for
from headscope.anatomy import glossary as rules
from headscope.attention.activations import ACTIVATIONS, BLOCK, FEW_BLOCKS, activate, gelu, slope
from headscope.attention.scores import EVERYTHING, Mask, attend, log_sum_exps, scores, softmax_rows, weights
from headscope.attention.terms import TABLES, Terms
from headscope.errors import InputError, TraceError, UnsupportedError
from headscope.heads.fast import fast_statistics
from headscope.heads.measure import measure
from headscope.heads.reference import LayerArrays
from headscope.live import capture
from headscope.traces import LayerRecord, Trace
from largest import Largest

MASKS = {
    "everything": lambda n, m: Mask(),
    "causal": lambda n, m: Mask(causal=True),
    "window": lambda n, m: Mask(window=(2, 1)),
    "left window": lambda n, m: Mask(causal=True, window=(3, None)),
    "keys": lambda n, m: Mask(keys=np.arange(m) % 3 != 1),
    "no key": lambda n, m: Mask(keys=np.zeros(m, dtype=bool)),
    "bias": lambda n, m: Mask(bias=np.where(np.arange(n * m).reshape(1, n, m) % 5 == 0, -np.inf, 0.3).astype("f4")),
}


def case(heads: int, kv_heads: int, n: int, m: int, d: int, spread: float, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(heads, n, d)).astype("f4") * spread
    k = rng.normal(size=(kv_heads, m, d)).astype("f4")
    v = rng.normal(size=(kv_heads, m, d)).astype("f4")
    return q, k, v


@pytest.mark.parametrize("mask_name", MASKS)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 5), (3, 7), (7, 7)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_tiles_contexts_and_sums_agree_with_the_definition(
    mask_name: str, n: int, m: int, heads: int, kv_heads: int, kind: str
) -> None:
    q, k, v = case(heads, kv_heads, n, m, 8, 1.0, 7)
    mask = MASKS[mask_name](n, m)
    s, p, context, lse = by_definition(q, k, v, 0.3, mask)

    def here(array: Any) -> Any:
        return torch.from_numpy(array) if kind == "torch" else array

    rule = mask if mask.bias is None else Mask(bias=here(mask.bias))
    got_context, got_lse = attend(here(q), here(k), here(v), scale=0.3, mask=rule)
    tile = scores(here(q), here(k), scale=0.3, mask=rule)
    got_weights = weights(tile, got_lse)
    np.testing.assert_allclose(np.asarray(tile), s, atol=2e-6)
    np.testing.assert_allclose(np.asarray(got_lse), lse, atol=2e-6)
    np.testing.assert_allclose(np.asarray(got_weights), p, atol=2e-6)
    np.testing.assert_allclose(np.asarray(got_context), context, atol=2e-6)
    if mask.bias is None:
        logs = np.log(np.where(p > 0, p, 1))
        expected = -(p * logs).sum(-1)
        parts = softmax_rows(here(q), here(k), scale=0.3, mask=rule, keep_scores=True)
        energy = np.concatenate([np.asarray(part.energy) for part in parts], -1)
        got = np.where(np.isneginf(lse), 0, np.nan_to_num(np.asarray(got_lse), neginf=0) - energy)
        np.testing.assert_allclose(got, expected, atol=5e-6)


@settings(max_examples=60)
@given(
    n=st.integers(1, 300),
    d=st.integers(1, 16),
    heads=st.integers(1, 3),
    spread=st.sampled_from([1e-6, 1.0, 30.0, 1e4]),
    seed=st.integers(0, 2**32 - 1),
)
def test_blocks_agree_with_the_whole_map_at_any_size_and_spread(
    n: int, d: int, heads: int, spread: float, seed: int
) -> None:
    q, k, v = case(heads, heads, n, n, d, spread, seed)
    context, lse = attend(q, k, v, scale=1.0)
    s = q.astype("f8") @ k.astype("f8").swapaxes(1, 2)
    p = np.exp(s - s.max(-1, keepdims=True))
    total = p.sum(-1)
    terms = np.abs(q.astype("f8")) @ np.abs(k.astype("f8")).swapaxes(1, 2)
    size = max(1.0, float(terms.max()))  # a score's rounding is as large as its terms, also where they cancel
    np.testing.assert_allclose(lse, np.log(total) + s.max(-1), atol=1e-6 * size)
    np.testing.assert_allclose(context, p @ v.astype("f8") / total[..., None], atol=1e-5 * size)
    assert np.isfinite(context).all()


def test_heads_that_cannot_share_keys_are_refused() -> None:
    q, k, v = case(3, 2, 4, 4, 4, 1.0, 0)
    with pytest.raises(InputError, match="3 query heads can't share 2 key heads"):
        attend(q, k, v, scale=1.0)


X = np.concatenate([np.linspace(-12, 12, 200_001), [-1e30, 1e30, 0.0, -0.0, 1e-30]]).astype(np.float32)


def test_gelu_is_exact_to_fp32_everywhere() -> None:
    """As close to fp64 as torch's own in fp32, in units of the larger of 1 and the result."""
    x = torch.from_numpy(X)
    exact = torch.nn.functional.gelu(x.double()).numpy()
    unit = np.maximum(1, np.abs(exact))
    theirs = np.abs(torch.nn.functional.gelu(x).numpy() - exact) / unit
    ours = np.abs(gelu(X.copy()) - exact) / unit
    assert ours.max() <= theirs.max()
    assert ours.max() < 5e-7


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_is_what_transformers_computes_under_that_name(name: str) -> None:
    x = X[np.abs(X) < 20]
    expected = ACT2FN[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ACTIVATIONS[name][0](x), expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_slope_is_autograds(name: str) -> None:
    x = X[(np.abs(X) < 20) & (X != 0)]
    wide = torch.from_numpy(x).double().requires_grad_()
    (expected,) = torch.autograd.grad(ACT2FN[name](wide).sum(), wide)
    np.testing.assert_allclose(slope(name, x), expected.numpy(), atol=2e-6)
    assert np.isfinite(slope(name, X)).all()


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 3, FEW_BLOCKS * BLOCK + 1])
def test_blocks_cover_the_array_in_place(size: int) -> None:
    x = np.linspace(-3, 3, size, dtype=np.float32).reshape(1, size)
    expected = gelu(x.copy())
    with ThreadPoolExecutor(2) as threads:
        activate("gelu", x, threads)
    np.testing.assert_array_equal(x, expected)


def test_the_glossary_knows_the_same_names() -> None:
    assert set(ACTIVATIONS) == set(rules.ACTIVATIONS)


def test_an_unknown_name_is_refused() -> None:
    with ThreadPoolExecutor(1) as threads, pytest.raises(UnsupportedError, match="'snake'"):
        activate("snake", np.zeros((1, 1), np.float32), threads)
    with pytest.raises(UnsupportedError, match="'snakesnake") as caught:
        slope("snake" * 9000, np.zeros((1, 1), np.float32))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "mask", [EVERYTHING, Mask(causal=True), Mask(keys=np.arange(3000) < 2900), Mask(window=(8, None))]
)
def test_nothing_is_as_large_as_a_map(mask: Mask) -> None:
    q = torch.randn(1, 1, 3000, 8)
    with torch.no_grad(), Largest() as largest:
        attend(q[0], q[0], q[0], scale=0.5, mask=mask)
    assert largest.cells < 3000 * 3000 / 8


@pytest.mark.parametrize("padded", [False, True])
def test_a_capture_makes_nothing_as_large_as_a_map(padded: bool) -> None:
    """At 4,096 tokens, a capture creates no tensor of a map's size beyond those of the model's forward pass."""
    tokens = 4096
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 16}
    config = transformers.BertConfig(**sizes, vocab_size=99, max_position_embeddings=tokens)
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    inputs = {"input_ids": torch.ones(1, tokens, dtype=torch.long)}
    if padded:
        inputs["attention_mask"] = (torch.arange(tokens) < 4000).long()[None]
    with torch.no_grad():
        with Largest() as alone:
            model(**inputs)
        with Largest() as watched, capture(model) as captured:
            model(**inputs)
        assert len(captured.trace) == (4000 if padded else tokens)
    assert watched.maps(tokens) == alone.maps(tokens)
    if not padded:
        assert watched.maps(tokens) == 0


# Score terms against the formula written out cell by cell in fp64, for NumPy and torch, and in every consumer.


HEADS, KV_HEADS, D = 4, 2, 8
SIZES = ((5, 5), (3, 9), (130, 20), (20, 130), (9, 4), (1, 1))
"""More rows or columns than two chunks have, among others."""
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


def test_terms_of_a_head_are_views_and_those_of_heads_in_their_order() -> None:
    terms = made("all", 5, 5)[-1]
    for name in TABLES:
        table, one, two = (getattr(each, name) for each in (terms, terms.of_head(2), terms.of_heads([2, 0])))
        np.testing.assert_array_equal(one, table[2:3])
        assert np.shares_memory(one, table)
        np.testing.assert_array_equal(two, np.stack([table[2], table[0]]))


HIDING = ("everything", "left window", "keys", "no key")


@pytest.mark.parametrize("mask", HIDING)
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
    for context, sums in (ours, attend(*tensors, scale=0.3, mask=rule, terms=in_torch)):
        np.testing.assert_allclose(np.asarray(context), expected, atol=1e-12)
        np.testing.assert_allclose(np.asarray(sums), lse, atol=1e-12)
    np.testing.assert_allclose(log_sum_exps(q, k, scale=0.3, mask=rule, terms=terms), lse, atol=1e-4)
    for rows in softmax_rows(q, k, scale=0.3, mask=rule, terms=terms, cells=1, keep_scores=True):
        entropies = np.where(np.isneginf(rows.lse), 0, np.nan_to_num(rows.lse, neginf=0) - rows.energy)
        np.testing.assert_allclose(entropies, nats[:, rows.rows], atol=1e-11)
        shares = rows.sink_weights
        np.testing.assert_allclose(0 if shares is None else shares, spare[:, rows.rows], atol=1e-12)


@pytest.mark.parametrize("mask", HIDING[:3])
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
        plain = measure(LayerArrays(*row[:3], 0.3, rule, row[3], W_O), token_roles)
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
