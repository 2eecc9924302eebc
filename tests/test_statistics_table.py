"""A trace's table of statistics and the distances between its heads; which tokens count as what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import headscope as hs
from by_hand import axis_of
from headscope.errors import InputError, TraceError
from headscope.heads import CATALOG, roles_of
from headscope.results.arrays import TokenAxis
from headscope.results.tokens import is_punctuation
from headscope.traces import LayerRecord, Trace

NORMS = {"norm", "norm_special"}


@pytest.fixture(scope="module")
def trace(bert: hs.Model) -> Trace:
    return bert.trace("the cat sat on the mat.", "she took off her hat.")


def test_the_table_has_every_statistic_of_every_head(trace: Trace) -> None:
    table = trace.statistics()
    assert list(table) == list(CATALOG)
    assert not table.left_out
    assert table.layers == (0, 1)
    assert table.heads == ((0, 1), (0, 1))
    for name, named in table.items():
        assert (named.name, named.dims, named.shape) == (name, ("layers", "heads"), (2, 2))
        assert named.dtype == np.float32
        assert np.isfinite(named.array).all(), name
    assert "effective number" in repr(table)


def test_rows_are_the_table_one_head_or_query_each(trace: Trace) -> None:
    table = trace.statistics(["entropy", "first"])
    rows = table.rows()
    assert [(row["layer"], row["head"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert list(rows[0]) == ["layer", "head", "entropy", "first"]
    assert [row["first"] for row in rows] == table["first"].array.ravel().tolist()
    per_query = trace.statistics("entropy", per_query=True)
    rows = per_query.rows()
    assert len(rows) == 4 * len(trace)
    assert rows[len(trace) + 3] == {"layer": 0, "head": 1, "query": 3, "entropy": float(per_query["entropy"][0, 1, 3])}


def test_heads_made_by_hand_are_what_they_were_made_for(trace: Trace) -> None:
    table = trace.statistics(["previous", "same", "next", "first", "offset"])
    assert list(table) == ["previous", "next", "same", "first", "offset"]
    for name, place in {"previous": (0, 0), "same": (0, 1), "next": (1, 0), "first": (1, 1)}.items():
        assert np.unravel_index(table[name].array.argmax(), (2, 2)) == place
    assert table["offset"][0, 0] < 0 < table["offset"][1, 0]


def test_heads_are_means_of_queries_with_special_tokens_in_or_out(trace: Trace) -> None:
    for special in (True, False):
        per_query = trace.statistics(per_query=True, special=special)
        means = trace.statistics(special=special)
        rows = [i for i, added in enumerate(trace.special) if special or not added]
        for name, named in per_query.items():
            assert named.dims == ("layers", "heads", "queries")
            assert set(np.flatnonzero(~np.isnan(named.array).all((0, 1)))) <= set(rows)
            np.testing.assert_allclose(means[name].array, np.nanmean(named.array[..., rows], -1), rtol=1e-5)
    whole = trace.statistics("entropy", per_query=True)["entropy"].array
    weights = np.asarray(trace[1, 0].weights, dtype=np.float64)
    np.testing.assert_allclose(whole[1, 0], -(weights * np.log(np.maximum(weights, 1e-300))).sum(-1), atol=1e-5)


def test_torch_gives_the_same_table(trace: Trace, tmp_path: Path) -> None:
    back = hs.load(trace.save(tmp_path / "one.safetensors"), model=trace.source)
    for one in (trace, back):
        numpy, torch = one.statistics(), one.statistics(engine="torch")
        for name in CATALOG:
            np.testing.assert_allclose(torch[name].array, numpy[name].array, rtol=1e-4, atol=1e-4, err_msg=name)
    with pytest.raises(InputError, match="unknown engine 'abacus'"):
        trace.statistics(engine="abacus")


def test_norms_need_the_model_and_the_values(trace: Trace, tmp_path: Path) -> None:
    alone = hs.load(trace.save(tmp_path / "one.safetensors"))
    table = alone.statistics()
    assert set(table.left_out) == NORMS
    assert set(CATALOG) - set(table) == NORMS
    assert "without norm" in repr(table)
    with pytest.raises(KeyError, match="has no model to read it from"):
        table["norm"]
    with pytest.raises(TraceError, match="need W_O"):
        alone.statistics("norm")
    valueless = hs.load(trace.save(tmp_path / "two.safetensors", values=False), model=trace.source)
    with pytest.raises(TraceError, match="need the values V"):
        valueless.statistics(["norm_special"])
    with pytest.raises(InputError, match="unknown statistic 'banana'"):
        trace.statistics("banana")
    with pytest.raises(KeyError, match="not requested"):
        trace.statistics("same")["entropy"]


def test_norms_are_the_lengths_of_what_is_gathered(trace: Trace) -> None:
    found = trace.statistics("norm", per_query=True)["norm"]
    for layer, head in ((0, 0), (1, 1)):
        one = trace[layer, head]
        lengths = np.linalg.norm(one.v @ trace.source.W_O(layer, head), axis=-1)
        np.testing.assert_allclose(found[layer, head], np.asarray(one.weights) @ lengths, rtol=1e-4)


def test_silenced_heads_write_nothing(bert: hs.Model) -> None:
    found = bert.trace("the cat", ablate={(0, 1)}).statistics()
    assert found["norm"][0, 1] == 0
    assert np.isnan(found["norm_special"][0, 1])
    assert found["same"][0, 1] > 0.5


def test_one_text_has_no_other_sentence(bert: hs.Model) -> None:
    found = bert.trace("the cat").statistics()
    assert np.isnan(found["other_sentence"].array).all()
    assert np.isnan(found["punctuation"].array).all()
    assert np.isfinite(found["cls"].array).all()


def test_head_distances_are_the_jensen_shannon_distance(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    from headscope.heads.head_distances import head_distances as part  # the function; its module holds TILE_CELLS

    monkeypatch.setitem(part.__globals__, "TILE_CELLS", 40)
    found = trace.head_distances()
    assert found.dims == ("heads_total", "heads_total")
    assert found.labels == ("0.0", "0.1", "1.0", "1.1")
    maps = [np.asarray(trace[i, j].weights, dtype=np.float64) for i in range(2) for j in range(2)]

    def entropy(p: np.ndarray) -> np.ndarray:
        return -(p * np.log(np.maximum(p, 1e-300))).sum(-1)

    for rows in (np.ones(len(trace), dtype=bool), ~trace.special):
        expected = np.array(
            [
                [np.sqrt(max(0, np.mean((entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2)[rows]))) for p in maps]
                for q in maps
            ]
        )
        got = trace.head_distances(special=bool(rows.all())).array
        np.testing.assert_allclose(got, expected, atol=2e-4)
        np.testing.assert_array_equal(got, got.T)
        assert (np.diag(got) == 0).all()


def axis(tokens: str, special: str, segments: str) -> TokenAxis:
    flags = tuple(one == "1" for one in special)
    return axis_of(tokens.split(), segments=tuple(map(int, segments)), special=flags)


def made(queries: TokenAxis, keys: TokenAxis | None = None, pair: str | None = None) -> Trace:
    rng = np.random.default_rng(0)
    keys = queries if keys is None else keys
    q, k = (rng.normal(size=(2, len(one), 4)).astype(np.float32) for one in (queries, keys))
    record = LayerRecord(q, k, None, np.zeros(q.shape[:2], dtype=np.float32), 0.5)
    return Trace(model="made", queries=queries, keys=keys, layers=[record], outputs={}, pair=pair)


def test_roles_of_bert_and_roberta() -> None:
    bert = roles_of(made(axis("[CLS] a , [SEP] b . [SEP]", "1001001", "0000111"), pair="b."))
    roberta = roles_of(made(axis("<s> a Ġ, </s> </s> Ġb . </s>", "10011001", "00000000"), pair="b."))
    assert bert.cls.tolist() == [True, *[False] * 6]
    assert np.flatnonzero(bert.sep).tolist() == [3, 6]
    assert np.flatnonzero(bert.punctuation).tolist() == [2, 5]
    assert bert.sentences.tolist() == [-1, 0, 0, -1, 1, 1, -1]
    assert np.flatnonzero(roberta.sep).tolist() == [3, 4, 7]
    assert np.flatnonzero(roberta.punctuation).tolist() == [2, 6]
    assert roberta.sentences.tolist() == [-1, 0, 0, -1, -1, 1, 1, -1]
    single = roles_of(made(axis("[CLS] a [SEP]", "101", "000")))
    assert single.sentences.tolist() == [-1, -1, -1]


def test_cross_attention_has_no_neighbours() -> None:
    found = made(axis("a b", "00", "00"), axis("c d e", "000", "000")).statistics()
    for name in ("previous", "next", "same", "offset", "distance", "other_sentence"):
        assert np.isnan(found[name].array).all(), name
    assert np.isfinite(found["entropy"].array).all()


def test_layers_may_differ_in_heads() -> None:
    whole = made(axis("a b c", "000", "000"))
    record = whole.layers[0]
    fewer = replace(record, q=record.q[1:], k=record.k[1:], lse=record.lse[1:], numbers=(1,))
    trace = Trace(model="made", queries=whole.queries, layers=[record, fewer], outputs={})
    found = trace.statistics("entropy")
    assert found.heads == ((0, 1), (1,))
    assert found["entropy"][1, 1] == found["entropy"][0, 1]  # each head in the column of its number
    assert np.isnan(found["entropy"][1, 0])
    assert [(row["layer"], row["head"]) for row in found.rows()] == [(0, 0), (0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (",", True),
        ("...", True),
        ("。", True),
        ("$", True),
        ("“", True),
        ("a.", False),
        ("", False),
        (" ", False),
        ("€", False),
    ],
)
def test_punctuation_is_as_berts_tokenizer_has_it(word: str, expected: bool) -> None:
    assert is_punctuation(word) is expected
