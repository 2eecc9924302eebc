"""The catalog, and the formulas of a layer's heads against the whole map, written out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from headscope.attention.scores import Mask
from headscope.heads import CATALOG, Roles
from headscope.heads.catalog import WEIGHTS_ONLY
from headscope.heads.measure import measure
from headscope.heads.reference import FORMULAS, LayerArrays, allowed_counts, over_queries
from headscope.results.head_values import LANGUAGES

ROOT = Path(__file__).parent.parent
SIZE, HEADS, D = 11, 3, 8


def written_out(weights: np.ndarray, roles: Roles, allowed: np.ndarray, padding: np.ndarray) -> dict[str, float]:
    """One head's statistics from its whole map, over the queries that see a key and are no padding."""
    queries, keys = weights.shape
    rows: dict[str, list[float]] = {name: [] for name in WEIGHTS_ONLY}
    for i, row in enumerate(weights):
        place = i + keys - queries
        if not allowed[i].any() or padding[place]:
            continue
        entropy = -sum(p * np.log(p) for p in row if p > 0)
        rows["entropy"].append(entropy)
        if allowed[i].sum() > 1:
            rows["normalised_entropy"].append(entropy / np.log(allowed[i].sum()))
        rows["effective_tokens"].append(1 / sum(p**2 for p in row))
        rows["strongest"].append(max(row))
        rows["first"].append(row[0])
        for name, j in (("previous", place - 1), ("same", place), ("next", place + 1)):
            if 0 <= j < keys:
                rows[name].append(row[j])
        for name, of in (("cls", roles.cls), ("sep", roles.sep), ("punctuation", roles.punctuation)):
            if of.any():
                rows[name].append(sum(row[of]))
        if roles.query_sentences[i] >= 0:
            rows["other_sentence"].append(sum(row[roles.sentences == 1 - roles.query_sentences[i]]))
        rows["offset"].append(sum(p * (j - place) for j, p in enumerate(row)))
        rows["distance"].append(sum(p * abs(j - place) for j, p in enumerate(row)))
    return {name: float(np.mean(values)) if values else float("nan") for name, values in rows.items()}


def head_means(layer: LayerArrays, roles: Roles, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Each head's statistics in the precision of q and k."""
    return {name: over_queries(values) for name, values in measure(layer, roles, names, dtype=None).items()}


def roles_for(queries: int) -> Roles:
    """[CLS] a , b [SEP] c d [SEP] . e [SEP]: two texts, one more separator."""
    special = np.isin(np.arange(SIZE), (0, 4, 7, 10))
    sentences = np.where(special, -1, (np.arange(SIZE) > 4).astype(int))
    return Roles(
        cls=np.arange(SIZE) == 0,
        sep=special & (np.arange(SIZE) > 0),
        punctuation=np.isin(np.arange(SIZE), (2, 8)),
        special=special,
        sentences=sentences,
        query_sentences=sentences[SIZE - queries :],
        query_special=special[SIZE - queries :],
    )


@pytest.mark.parametrize(
    "mask",
    [
        Mask(),
        Mask(causal=True),
        Mask(window=(2, 0)),
        Mask(keys=np.arange(SIZE) != 4),
        Mask(keys=np.zeros(SIZE, bool)),
        Mask(window=(-1, 2)),
    ],
)
@pytest.mark.parametrize("queries", [SIZE, 4, 1])
@pytest.mark.parametrize("cells", [1 << 18, 40])
def test_blocks_agree_with_the_whole_map(mask: Mask, queries: int, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscope.attention.scores.TILE_CELLS", cells)
    generator = np.random.default_rng(1)
    q = generator.normal(size=(HEADS, queries, D)).astype(np.float32)
    k = generator.normal(size=(HEADS, SIZE, D)).astype(np.float32)
    roles = roles_for(queries)
    means = head_means(LayerArrays(q, k, scale=0.5, mask=mask), roles, WEIGHTS_ONLY)
    scores = 0.5 * np.einsum("hnd,hmd->hnm", q.astype(np.float64), k.astype(np.float64))
    allowed = mask.allowed(np.arange(queries), np.arange(SIZE), (queries, SIZE))
    allowed = np.ones((queries, SIZE), bool) if allowed is None else allowed
    scores = np.where(allowed, scores, -np.inf)
    highest = np.where(np.isneginf(scores.max(-1, keepdims=True)), 0, scores.max(-1, keepdims=True))
    powers = np.exp(scores - highest)
    weights = powers / np.maximum(powers.sum(-1, keepdims=True), 1e-30)
    padding = np.zeros(SIZE, bool) if mask.keys is None else ~mask.keys
    for head in range(HEADS):
        for name, value in written_out(weights[head], roles, allowed, padding).items():
            assert means[name][head] == pytest.approx(value, abs=3e-5, nan_ok=True), name


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


def cases() -> list[dict[str, object]]:
    cases: list[dict[str, object]] = json.loads((ROOT / "tests" / "data" / "rules.json").read_text(encoding="utf-8"))
    return cases


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case['causal']}-{case['window']}-{case['queries']}")
def test_causality_and_windows_allow_these_cells(case: dict[str, object]) -> None:
    """The page's rule is held to the same cells: web/tests/rules.test.ts."""
    window = None if case["window"] is None else tuple(case["window"])  # type: ignore[arg-type]
    mask = Mask(causal=bool(case["causal"]), window=window)
    cells = np.array([[cell == "1" for cell in row] for row in case["cells"]])  # type: ignore[attr-defined]
    queries, keys = cells.shape
    allowed = mask.allowed(np.arange(queries), np.arange(keys), (queries, keys))
    np.testing.assert_array_equal(np.ones_like(cells) if allowed is None else allowed, cells)
    np.testing.assert_array_equal(allowed_counts(mask, queries, keys), cells.sum(1))


def test_the_cases_are_what_the_rules_say() -> None:
    for case in cases():
        queries, keys = int(case["queries"]), int(case["keys"])  # type: ignore[call-overload]
        left, right = case["window"] or (None, None)  # type: ignore[misc]
        for i in range(queries):
            for j in range(keys):
                ahead = j - (i + keys - queries)
                seen = not (case["causal"] and ahead > 0)
                seen &= left is None or ahead >= -left
                seen &= right is None or ahead <= right
                assert case["cells"][i][j] == "01"[seen]  # type: ignore[index]
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
