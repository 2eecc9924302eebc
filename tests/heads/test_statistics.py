"""The catalog and the rules of masks; the plain statistics against their definitions, the fast against the plain."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from by_hand import roles_for
from headscope.attention import blocks
from headscope.attention.scores import Mask
from headscope.errors import InputError
from headscope.heads import CATALOG, Roles
from headscope.heads.fast import fast_statistics, prepare
from headscope.heads.measure import measure
from headscope.heads.reference import FORMULAS, LayerArrays, allowed_counts, gram_of, over_queries
from headscope.results.head_values import LANGUAGES
from largest import Largest

ROOT = Path(__file__).parents[2]
SIZE, D = 11, 8


def head_means(layer: LayerArrays, roles: Roles, names: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    """Each head's statistics in the precision of q and k."""
    return {name: over_queries(values) for name, values in measure(layer, roles, names, dtype=None).items()}


def test_a_query_that_a_bias_leaves_no_key_is_out_and_positions_are_in_self_attention_alone() -> None:
    generator = np.random.default_rng(2)
    q, k = (generator.normal(size=(1, SIZE, D)).astype(np.float32) for _ in range(2))
    bias = np.zeros((1, SIZE, SIZE), np.float32)
    bias[:, 3] = -np.inf
    names = ("strongest", "previous", "next", "same", "distance", "offset", "first")
    means = head_means(LayerArrays(q, k, scale=0.5, mask=Mask(bias=bias)), Roles.none(SIZE, SIZE), names)
    kept = np.delete(np.arange(SIZE), 3)
    powers = np.exp(0.5 * (q[0] @ k[0].T).astype(np.float64))
    weights = powers / powers.sum(-1, keepdims=True)
    assert means["strongest"][0] == pytest.approx(weights[kept].max(-1).mean(), abs=1e-5)
    apart = Roles(**{**vars(Roles.none(SIZE, SIZE)), "aligned": False})
    crossed = head_means(LayerArrays(q, k, scale=0.5), apart, names)
    assert {name for name, values in crossed.items() if np.isnan(values).all()} == set(names) - {"strongest", "first"}


def cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((ROOT / "tests" / "data" / "rules.json").read_text(encoding="utf-8"))
    return cases


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case['causal']}-{case['window']}-{case['queries']}")
def test_causality_and_windows_allow_these_cells(case: dict[str, Any]) -> None:
    """The cells are what the rules say. The page's rule is held to the same ones: web/tests/rules.test.ts."""
    window = None if case["window"] is None else tuple(case["window"])
    mask = Mask(causal=bool(case["causal"]), window=window)
    cells = np.array([[cell == "1" for cell in row] for row in case["cells"]])
    queries, keys = cells.shape
    ahead, (left, right) = np.arange(keys) - np.arange(queries)[:, None] + queries - keys, window or (None, None)
    seen = (ahead <= 0) | (not case["causal"])
    seen &= (left is None or ahead >= -left) & (right is None or ahead <= right)
    np.testing.assert_array_equal(cells, seen)
    allowed = mask.allowed(np.arange(queries), np.arange(keys), (queries, keys))
    np.testing.assert_array_equal(np.ones_like(cells) if allowed is None else allowed, cells)
    np.testing.assert_array_equal(allowed_counts(mask, queries, keys), cells.sum(1))


def test_there_are_cases_of_every_rule() -> None:
    assert {(case["causal"], case["window"] is None) for case in cases()} == {(a, b) for a in (0, 1) for b in (0, 1)}


def test_every_statistic_has_a_formula_and_all_words() -> None:
    assert set(FORMULAS) == set(CATALOG)
    for name, statistic in CATALOG.items():
        assert statistic.name == name
        assert all(statistic.names)
        assert len(statistic.names) == len(LANGUAGES)
        assert len(statistic.units) in (0, len(LANGUAGES))
        assert all((statistic.meaning, statistic.formula, statistic.source, statistic.unit, statistic.most))


def test_the_docs_list_the_catalog(request: pytest.FixtureRequest) -> None:
    """The table of docs/statistics.md is written by `pytest --refresh-screens`."""
    path = ROOT / "docs" / "statistics.md"
    text = path.read_text(encoding="utf-8")
    rows = [f"| `{name}` | {of.formula} | {of.unit} | {of.source} |" for name, of in CATALOG.items()]
    table = "\n".join(["| name | of one query i | unit | source |", "|---|---|---|---|", *rows])
    (kept,) = re.findall(r"(\| name \| of one query i .*?)\n\n", text, re.DOTALL)
    if request.config.getoption("--refresh-screens"):
        path.write_text(text.replace(kept, table), encoding="utf-8")
    else:
        assert kept == table


MASKS = {
    "everything": lambda n: Mask(),
    "padding": lambda n: Mask(keys=np.arange(n) < max(1, n - 3)),
    "causal": lambda n: Mask(causal=True),
    "causal, padded on the left": lambda n: Mask(causal=True, keys=np.arange(n) >= min(2, n - 1)),
    "window": lambda n: Mask(window=(5, 3)),
    "causal window, padded": lambda n: Mask(causal=True, window=(4, None), keys=np.arange(n) % 7 != 5),
    "nothing to see": lambda n: Mask(keys=np.zeros(n, dtype=bool)),
}


MORE_MASKS = {
    "window of the past": lambda n: Mask(window=(2, 0)),
    "window ahead": lambda n: Mask(window=(-1, 2)),
    "window without an end": lambda n: Mask(window=(None, 1)),
    "a key in the middle": lambda n: Mask(keys=np.arange(n) != n // 2),
}


def drawn(
    n: int, *, heads: int = 4, kv_heads: int = 4, d: int = 8, spread: float = 1.0, seed: int = 0
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "q": (rng.normal(size=(heads, n, d)) * spread).astype(np.float32),
        "k": rng.normal(size=(kv_heads, n, d)).astype(np.float32),
        "v": rng.normal(size=(kv_heads, n, d)).astype(np.float32),
        "W_O": rng.normal(size=(heads, d, 24)).astype(np.float32),
    }


def plain_of(
    q: Any, k: Any, v: Any = None, *, roles: Any, names: Any = None, compute: Any = measure, **more: Any
) -> dict[str, Any]:
    return compute(LayerArrays(q, k, v, **more), roles, names)


def fast_of(*arrays: Any, **options: Any) -> dict[str, Any]:
    return plain_of(*arrays, compute=fast_statistics, **options)


def both(arrays: dict[str, np.ndarray], **options: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    plain = plain_of(**arrays, **options)
    fast = fast_of(**{name: torch.from_numpy(array) for name, array in arrays.items()}, **options)
    return plain, {name: found.numpy() for name, found in fast.items()}


def agree(plain: dict[str, np.ndarray], fast: dict[str, np.ndarray], keys: int) -> None:
    """To 1e-4; distances, which are as large as the text is long, to 5e-7 of that where it is more."""
    assert list(plain) == list(fast)
    for name, expected in plain.items():
        limit = max(1e-4, 5e-7 * keys) if name in ("offset", "distance") else 1e-4
        np.testing.assert_allclose(fast[name], expected, rtol=1e-4, atol=limit, err_msg=name)


@pytest.mark.parametrize("mask", [*MASKS, *MORE_MASKS])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (4, 2), (3, 1)])
@pytest.mark.parametrize("n", [1, 2, 3, 40])
def test_fast_agrees_with_plain(mask: str, heads: int, kv_heads: int, n: int) -> None:
    arrays = drawn(n, heads=heads, kv_heads=kv_heads)
    plain, fast = both(arrays, scale=0.35, mask={**MASKS, **MORE_MASKS}[mask](n), roles=roles_for(n))
    assert set(plain) == set(CATALOG)
    agree(plain, fast, n)


@pytest.mark.parametrize("mask", ["everything", "causal", "padding", "causal, padded on the left"])
@pytest.mark.parametrize("n", [700, 3000])
def test_they_agree_on_long_texts(mask: str, n: int) -> None:
    plain, fast = both(drawn(n, heads=1, kv_heads=1, spread=3), scale=0.35, mask=MASKS[mask](n), roles=roles_for(n))
    agree(plain, fast, n)


@pytest.mark.parametrize("mask", ["everything", "padding", "causal, padded on the left", "window"])
@pytest.mark.parametrize("spread", [0.0, 1e-4, 30.0, 300.0, 1e4, 1e6])
def test_they_agree_on_extreme_scores(mask: str, spread: float) -> None:
    """From all alike to one key taking everything, with scores of millions."""
    plain, fast = both(drawn(60, spread=spread), scale=0.35, mask=MASKS[mask](60), roles=roles_for(60))
    agree(plain, fast, 60)


@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True), Mask(keys=np.arange(9) != 3)])
def test_fewer_queries_than_keys(mask: Mask) -> None:
    """A decoder with a cache: the last query stands at the last key."""
    arrays = drawn(9)
    arrays["q"] = arrays["q"][:, -4:]
    plain, fast = both(arrays, scale=0.35, mask=mask, roles=roles_for(4, 9))
    agree(plain, fast, 9)
    if mask.causal:
        everything = plain_of(**drawn(9), scale=0.35, mask=mask, roles=roles_for(9))
        for name, found in plain.items():
            np.testing.assert_allclose(found, everything[name][:, -4:], err_msg=name)


def written_out(p: np.ndarray, i: int, allowed: int, roles: Roles, lengths: np.ndarray) -> dict[str, float]:
    """One query's statistics from its row of weights, as the definitions read."""
    place = i + len(p) - len(roles.query_sentences)
    keys = range(len(p))
    nothing = float("nan")
    entropy = -sum(p[j] * np.log(p[j]) for j in keys if p[j] > 0)
    gathered = sum(p[j] * lengths[j] for j in keys)
    sentence = roles.query_sentences[i]
    return {
        "entropy": entropy,
        "normalised_entropy": entropy / np.log(allowed) if allowed > 1 else nothing,
        "effective_tokens": 1 / sum(p[j] ** 2 for j in keys),
        "strongest": max(p),
        "confidence": max([p[j] for j in keys if not roles.special[j]], default=nothing),
        "rarest": sum(p[j] for j in keys if roles.rarest[j]),
        "previous": p[place - 1] if place else nothing,
        "next": p[place + 1] if place + 1 < len(p) else nothing,
        "same": p[place],
        "first": p[0],
        "cls": sum(p[j] for j in keys if roles.cls[j]),
        "sep": sum(p[j] for j in keys if roles.sep[j]),
        "punctuation": sum(p[j] for j in keys if roles.punctuation[j]),
        "other_sentence": sum(p[j] for j in keys if roles.sentences[j] == 1 - sentence) if sentence >= 0 else nothing,
        "offset": sum(p[j] * (j - place) for j in keys),
        "distance": sum(p[j] * abs(j - place) for j in keys),
        "norm": gathered,
        "norm_special": sum(p[j] * lengths[j] for j in keys if roles.special[j]) / gathered,
    }


@pytest.mark.parametrize("cells", [1 << 18, 40])
@pytest.mark.parametrize("queries", [11, 4, 1])
@pytest.mark.parametrize("mask", [*MASKS, *MORE_MASKS])
def test_plain_agrees_with_the_definitions(
    mask: str, queries: int, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In tiles of any size; a head's number is the mean of the queries that see a key and are no padding."""
    monkeypatch.setattr("headscope.attention.scores.TILE_CELLS", cells)
    n, arrays, roles = 11, drawn(11, kv_heads=2), roles_for(queries, 11)
    arrays["q"] = arrays["q"][:, n - queries :]
    rule = {**MASKS, **MORE_MASKS}[mask](n)
    found = plain_of(**arrays, scale=0.35, mask=rule, roles=roles)
    means = head_means(LayerArrays(**arrays, scale=0.35, mask=rule), roles)
    q, k, v, W_O = (arrays[name].astype(np.float64) for name in ("q", "k", "v", "W_O"))
    allowed = rule.allowed(np.arange(queries), np.arange(n), (queries, n))
    allowed = np.ones((queries, n), dtype=bool) if allowed is None else allowed
    padded = np.zeros(queries, dtype=bool) if rule.keys is None else ~rule.keys[n - queries :]
    for head in range(4):
        lengths = np.linalg.norm(v[head // 2] @ W_O[head], axis=-1)
        rows = []
        for i in np.flatnonzero(allowed.any(1) & ~padded):
            powers = np.where(allowed[i], np.exp(0.35 * q[head, i] @ k[head // 2].T), 0)
            rows.append(written_out(powers / powers.sum(), i, int(allowed[i].sum()), roles, lengths))
            assert set(rows[-1]) == set(found)
            for name, value in rows[-1].items():
                assert found[name][head, i] == pytest.approx(value, rel=1e-9, abs=1e-9, nan_ok=True), (name, i)
        for name in CATALOG:
            values = [row[name] for row in rows if not np.isnan(row[name])]
            expected = np.mean(values) if values else np.nan
            assert means[name][head] == pytest.approx(expected, rel=1e-5, abs=3e-5, nan_ok=True), name


def test_plain_counts_a_bias_and_fast_refuses_it() -> None:
    arrays, n = drawn(6), 6
    forbidden = np.triu(np.ones((n, n), dtype=bool), 1)
    bias = np.where(forbidden, -np.inf, 0).astype(np.float32)[None]
    by_rule = plain_of(**arrays, scale=0.35, mask=Mask(causal=True), roles=roles_for(n))
    by_bias = plain_of(**arrays, scale=0.35, mask=Mask(bias=bias), roles=roles_for(n))
    for name, found in by_bias.items():
        np.testing.assert_allclose(found, by_rule[name], err_msg=name)
    q, k = torch.from_numpy(arrays["q"]), torch.from_numpy(arrays["k"])
    with pytest.raises(InputError, match="with an additive bias"):
        fast_of(q, k, scale=0.35, mask=Mask(bias=torch.from_numpy(bias)), roles=roles_for(n))


def test_half_precision_is_widened() -> None:
    arrays = {name: torch.from_numpy(array).half() for name, array in drawn(30).items()}
    fast = fast_of(**arrays, scale=0.35, roles=roles_for(30))
    plain = plain_of(**{name: one.numpy() for name, one in arrays.items()}, scale=0.35, roles=roles_for(30))
    agree(plain, {name: found.numpy() for name, found in fast.items()}, 30)


def test_only_what_is_asked_for_comes_back() -> None:
    arrays = drawn(5)
    q, k = arrays["q"], arrays["k"]
    assert list(plain_of(q, k, scale=1.0, roles=roles_for(5), names=["same", "entropy"])) == [
        "entropy",
        "same",
    ]
    fast = fast_of(torch.from_numpy(q), torch.from_numpy(k), scale=1.0, roles=roles_for(5))
    assert set(CATALOG) - set(fast) == {"norm", "norm_special"}
    for compute in (plain_of, fast_of):
        with pytest.raises(InputError, match="unknown statistic 'banana'"):
            compute(q, k, scale=1.0, roles=roles_for(5), names=["banana"])
        with pytest.raises(InputError, match="norm_special requires v and W_O"):
            compute(q, k, scale=1.0, roles=roles_for(5), names=["norm_special"])


@pytest.mark.parametrize("mask", ["everything", "padding", "causal", "causal window, padded"])
def test_no_tensor_grows_faster_than_the_text(mask: str) -> None:
    """Four times the text, at most about four times the largest tensor, and far from a map."""
    sizes = []
    for n in (1500, 6000):
        arrays = {name: torch.from_numpy(array) for name, array in drawn(n, heads=1, kv_heads=1).items()}
        with Largest() as watch:
            fast_of(**arrays, scale=0.35, mask=MASKS[mask](n), roles=roles_for(n))
        sizes.append(watch.cells)
    assert sizes[1] <= 4.1 * sizes[0]
    assert sizes[1] <= max(65 * 6000, blocks.BLOCK_CELLS["cpu"])


def test_a_window_costs_the_window() -> None:
    """Blocks hold the keys that are near: twice the text, twice the cells, not four times."""
    cells = []
    for n in (1000, 2000):
        q = torch.randn(1, 1, n, 8)
        cells.append(
            sum(one.powers.numel() for one in blocks.softmax_blocks(q, q, scale=1.0, mask=Mask(window=(9, 4))))
        )
    assert cells[1] < 2.2 * cells[0]
    assert cells[1] < 2000 * 2000 / 4


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_batch_is_its_rows(causal: bool, kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that differ in their padding and in who their tokens are, against the plain computation row by row."""
    monkeypatch.setitem(blocks.BLOCK_CELLS, "cpu", 500)
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 4)
    n = 23
    rows = [drawn(n, kv_heads=kv_heads, seed=seed) for seed in range(3)]
    W_O = rows[0]["W_O"]
    masks = [Mask(causal=causal, keys=keys) for keys in (None, np.arange(n) < 17, np.arange(n) >= 6)]
    roles = [roles_for(n), Roles.none(n, n), roles_for(n)]
    q, k, v = (torch.from_numpy(np.stack([one[name] for one in rows])) for name in ("q", "k", "v"))
    prepared, layer = prepare(roles), LayerArrays(q, k, v, scale=0.35, mask=masks)
    for _ in range(2):  # what is kept of the masks serves again
        found = prepared.of(layer, gram=gram_of(torch.from_numpy(W_O)))
        assert found.shape == (len(CATALOG), 3, 4, n)
    for at, (row, mask, of) in enumerate(zip(rows, masks, roles, strict=True)):
        plain = plain_of(**row | {"W_O": W_O}, scale=0.35, mask=mask, roles=of)
        agree(plain, dict(zip(prepared.names, found[:, at].numpy(), strict=True)), n)


@pytest.mark.parametrize("mask", ["everything", "causal"])
def test_each_statistic_alone_is_that_of_all(mask: str) -> None:
    arrays = {name: torch.from_numpy(array) for name, array in drawn(40, kv_heads=2).items()}
    gram = gram_of(arrays.pop("W_O"))
    layer = LayerArrays(**arrays, scale=0.35, mask=MASKS[mask](40))
    together = prepare(roles_for(40)).of(layer, gram=gram)
    for name, expected in zip(CATALOG, together, strict=True):
        (alone,) = prepare(roles_for(40), [name]).of(layer, gram=gram)
        torch.testing.assert_close(alone, expected, equal_nan=True)


def test_batches_that_are_none_are_refused() -> None:
    q = torch.zeros(2, 1, 5, 8)
    with pytest.raises(InputError, match="2 rows of 2 kinds"):
        prepare([roles_for(5), roles_for(6)])
    prepared = prepare([roles_for(5)] * 2, ["entropy", "norm"])
    with pytest.raises(InputError, match="norm requires v and W_O"):
        prepared.of(LayerArrays(q, q))
    prepared = prepare([roles_for(5)] * 2, ["entropy"])
    with pytest.raises(InputError, match="2 masks of 2 kinds"):
        prepared.of(LayerArrays(q, q, mask=[Mask(), Mask(causal=True)]))
    with pytest.raises(InputError, match="don't match 2 x 5 queries"):
        prepared.of(LayerArrays(q[:1], q[:1]))
