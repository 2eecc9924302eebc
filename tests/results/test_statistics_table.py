"""Tables of heads: names, places, rows, differences, intervals; a trace's statistics; which tokens count as what."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from tokenizers import Tokenizer

import headscope as hs
from by_hand import axis_of
from headscope.errors import InputError, TraceError
from headscope.heads import CATALOG, roles_of
from headscope.heads.intervals import mean_interval
from headscope.heads.reference import roles_of_tokens
from headscope.heads.windows import axis_of as encoded_axis
from headscope.results.effect_records import Effects
from headscope.results.head_values import HeadValues, Measure
from headscope.results.table import HeadTable, MissingMeasureError, stacked
from headscope.results.tokens import TokenAxis, is_punctuation
from headscope.traces import LayerRecord, Trace
from naive_layers import MINILM

WALKTHROUGHS = Path(__file__).parents[2] / "docs" / "walkthroughs"
WORD = re.compile("[A-Za-z]+")
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
    with pytest.raises(KeyError, match="needs W_O, which is in the model"):
        table["norm"]
    with pytest.raises(TraceError, match="needs W_O"):
        alone.statistics("norm")
    valueless = hs.load(trace.save(tmp_path / "two.safetensors", values=False), model=trace.source)
    with pytest.raises(TraceError, match="values were not kept"):
        valueless.statistics(["norm_special"])
    with pytest.raises(KeyError, match="not requested"):
        trace.statistics("same")["entropy"]


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
    named = found.to_xarray().sel(head_a="1.0", head_b="0.1")
    assert (found.to_xarray().name, named.item()) == ("head_distances", found[2, 1])
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


def test_the_rarest_word_is_the_one_with_the_greatest_product_of_ranks() -> None:
    """Of all its tokens, wherever it stands; no sign, no special token, and nothing where tokens have no ids."""
    tokens = axis("[CLS] the quo ##kka , the emu emu [SEP]", "100000001", "000000000")
    ids = (101, 10, 900, 800, 99999, 10, 30000, 30000, 102)
    tokens = replace(tokens, ids=ids, words=(None, 0, 1, 1, 2, 3, 4, 5, None))
    assert np.flatnonzero(roles_of(made(tokens)).rarest).tolist() == [2, 3]  # 900 * 800 > 30000
    common = replace(tokens, ids=(101, 10, 90, 80, 99999, 10, 30000, 30000, 102))
    assert np.flatnonzero(roles_of(made(common)).rarest).tolist() == [6, 7]
    apart = replace(tokens, words=(None,) * 9)
    assert np.flatnonzero(roles_of(made(apart)).rarest).tolist() == [6, 7]  # without words each token is one
    assert not roles_of(made(replace(tokens, ids=(-1,) * 9))).rarest.any()
    assert not roles_of(made(axis("[CLS] , [SEP]", "101", "000"))).rarest.any()


def test_the_rarest_word_is_rare_by_counts() -> None:
    """Of 20 words in a row, counted in the chapters of two books."""
    tokenizer = Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    tokenizer.no_truncation()
    texts = [(WALKTHROUGHS / f"{name}.txt").read_text(encoding="utf-8") for name in ("emma", "moby-dick")]
    counts = Counter(WORD.findall(" ".join(texts).lower()))
    shares = []
    for some in (some for text in texts for some in re.findall(r"(?:[A-Za-z]+\W+){20}", text)):
        tokens = encoded_axis(tokenizer.encode(some))
        rare = {tokens.spans[at] for at in np.flatnonzero(roles_of_tokens(tokens, tokens, some).rarest)}
        words = [(counts[word.group().lower()], word.span()) for word in WORD.finditer(some)]
        mine = min(count for count, (first, last) in words if any(span and first <= span[0] < last for span in rare))
        shares.append(np.mean([count < mine for count, _ in words]))
    assert len(shares) > 100
    assert np.mean(shares) < 0.15  # a word drawn by lot: about one half


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
    [*((word, True) for word in (",", "...", "。", "$", "“")), *((word, False) for word in ("a.", "", " ", "€"))],
)
def test_punctuation_is_as_berts_tokenizer_has_it(word: str, expected: bool) -> None:
    assert is_punctuation(word) is expected


ENTROPY = Measure("entropy", meaning="spread", unit="nats", high=None)
CHANGE = Measure("effect", meaning="change", unit="logit", low=None, high=None)
HEADS = ((0, 2), (1, 2))
"""Layers 3 and 5 kept heads 0 and 2, and 1 and 2: columns 0, 1 and 2."""
PLACES = [((3, 0), (0, 0)), ((3, 2), (0, 2)), ((5, 1), (1, 1)), ((5, 2), (1, 2))]


def placed(numbers: list[float]) -> np.ndarray:
    """(layers, heads) from a number for each head, in the columns of their numbers."""
    array = np.full((2, 3), np.nan)
    for (_, position), number in zip(PLACES, numbers, strict=True):
        array[position] = number
    return array


def table(numbers: list[float], **more: Any) -> HeadTable:
    return HeadTable({"entropy": HeadValues.of(ENTROPY, placed(numbers))}, (3, 5), HEADS, **more)


def test_a_head_stands_in_the_column_of_its_number() -> None:
    found = table([1, 2, 3, 4])
    assert found.across == (0, 1, 2)
    assert list(found.positions().items()) == PLACES
    assert found.rows() == [
        {"layer": layer, "head": head, "entropy": at}
        for at, (layer, head) in zip((1, 2, 3, 4), [(3, 0), (3, 2), (5, 1), (5, 2)], strict=True)
    ]
    assert found.of((5, 1)) == {"entropy": 3}
    with pytest.raises(InputError, match=r"no head \(5, 0\)"):
        found.of((5, 0))
    for name in ([5, 1], ([5], 1)):
        with pytest.raises(InputError, match=f"no head {re.escape(str(name))}"):
            found.of(name)  # type: ignore[arg-type]
    with pytest.raises(MissingMeasureError, match="has entropy"):
        found["norm"]


def test_one_measure_has_the_numbers_of_its_layers_and_heads() -> None:
    """As its table has them: in rows, in a notebook, in xarray, in a figure, and as a difference."""
    found = table([1, 2, 3, 4])
    for values in (found["entropy"], found.minus(found)["entropy"].a, found["entropy"].minus(found["entropy"])):
        assert [(row["layer"], row["head"]) for row in values.rows()] == [*itertools.product((3, 5), (0, 1, 2))]
    shown = found["entropy"]._repr_html_()
    assert shown is not None
    assert re.findall(r"<tr><td[^>]*>(\d+)<", shown) == ["3", "5"]
    assert found["entropy"].to_xarray().coords["layers"].values.tolist() == [3, 5]
    axes = found.plot("entropy")
    assert [text.get_text() for text in axes.get_yticklabels()] == ["3", "5"]
    whole = HeadTable({"entropy": HeadValues.of(ENTROPY, np.ones((2, 1)))}, (0, 1), ((0,), (0,)))
    assert whole["entropy"].numbers == ()


@pytest.mark.parametrize("first", [True, False])
def test_rows_go_along_the_axes_as_the_arrays_do(first: bool) -> None:
    """Steps before layers: all heads of a step together. Queries after heads: all queries of a head together."""
    whole = np.stack([placed([1, 2, 3, 4]), placed([5, 6, 7, 8])], axis=0 if first else -1)
    dims = ("steps", "layers", "heads") if first else ("layers", "heads", "queries")
    along = {"steps": (10, 20)} if first else {"queries": range(2)}
    found = HeadTable({"entropy": HeadValues.of(ENTROPY, whole, dims)}, (3, 5), HEADS, along=along)
    keys = list(found.rows()[0])
    assert keys == (["step", "layer", "head", "entropy"] if first else ["layer", "head", "query", "entropy"])
    values = [row["entropy"] for row in found.rows()]
    assert values == ([1, 2, 3, 4, 5, 6, 7, 8] if first else [1, 5, 2, 6, 3, 7, 4, 8])
    np.testing.assert_array_equal(found.of((5, 2))["entropy"], [4, 8])
    assert len({tuple(row[key] for key in keys[:3]) for row in found.rows()}) == 8


def test_columns_are_named_by_one_rule() -> None:
    numbers = placed([1, 2, 3, 4])
    sampled = HeadValues.of(CHANGE, numbers, low=numbers - 1, high=numbers + 1, over="documents", interval="bootstrap")
    plain = HeadValues.of(CHANGE, numbers)
    assert [name for name, _ in plain.columns()] == ["effect"]
    assert [name for name, _ in sampled.columns()] == ["effect", "effect_low", "effect_high"]
    names = [name for name, _ in plain.minus(plain).columns()]
    assert names == ["effect_a", "effect_b", "effect_change", "effect_low", "effect_high"]
    change = replace(replace(sampled, array=numbers + 2).minus(sampled), low=numbers, high=numbers + 3)
    assert {name: float(array[1, 2]) for name, array in change.columns()} == {
        "effect_a": 4,
        "effect_a_low": 3,
        "effect_a_high": 5,
        "effect_b": 6,
        "effect_b_low": 3,
        "effect_b_high": 5,
        "effect_change": 2,
        "effect_low": 4,
        "effect_high": 7,
    }


def test_rows_arrow_and_json_say_the_same() -> None:
    found = table([1, math.nan, 3, 4], facts={"label": {(3, 0): "previous word"}}, broken=frozenset({(3, 2)}))
    missing = [{**row, "entropy": None if row["entropy"] != row["entropy"] else row["entropy"]} for row in found.rows()]
    assert missing[1] == {"layer": 3, "head": 2, "entropy": None, "label": None}
    assert found.arrow().to_pylist() == missing
    assert pyarrow.table(found).to_pylist() == missing  # as whatever takes Arrow's tables reads it
    record = json.loads(json.dumps(found.json(), allow_nan=False))
    assert record["rows"] == missing
    assert record["broken"] == [[3, 2]]
    assert record["measures"][0]["unit"] == "nats"
    assert [row["entropy"] for row in found.rows(by="entropy")][:3] == [4, 3, 1]
    whole = HeadValues.of(ENTROPY, np.ones((2, 2, 3)), ("documents", "layers", "heads"))
    of_documents = HeadTable({"entropy": whole}, (3, 5), HEADS, along={"documents": ("a.txt", "b.txt")})
    for of, name in ((found, "norm"), (found, "label"), (found, ["entropy"]), (of_documents, "document")):
        with pytest.raises(MissingMeasureError, match=re.escape(f"no column of numbers {name!r}")):
            of.rows(by=name)  # type: ignore[arg-type]
    assert json.dumps(table([1, math.inf, 3, 4]).json(), allow_nan=False) == json.dumps(
        table([1, math.nan, 3, 4]).json()
    )


def test_the_strongest_are_by_size_and_never_nan() -> None:
    values = HeadValues.of(CHANGE, placed([1, -3, math.nan, 2]))
    found = HeadTable({"effect": values}, (3, 5), HEADS)
    assert found.strongest("effect") == [(3, 2), (5, 2), (3, 0)]
    bounds = {"low": placed([0.5, -7, math.nan, -1]), "high": placed([2, 1, math.nan, 3])}
    sampled = replace(found, columns={"effect": replace(values, **bounds)})
    assert sampled.strongest("effect", sure=True) == [(3, 0)]
    assert found.strongest("effect", 1, sure=True) == [(3, 2)]  # nothing was sampled: every number but 0 is sure
    assert not HeadValues.of(CHANGE, np.zeros((2, 2))).sure().any()


def test_a_difference_has_both_sides_and_their_facts() -> None:
    a = table([1, 2, 3, 4], facts={"label": {(3, 0): "broad"}}, source="one")
    b = table([2, 2, 3, 8], facts={"label": {(3, 0): "[SEP]"}}, source="other")
    change = b.minus(a)
    for side, whole in zip(change["entropy"].sides, (a, b), strict=True):
        np.testing.assert_array_equal(side, whole["entropy"])
    np.testing.assert_array_equal(change["entropy"], placed([1, 0, 0, 4]))
    assert change.rows()[0] == {
        "layer": 3,
        "head": 0,
        "entropy_a": 1,
        "entropy_b": 2,
        "entropy_change": 1,
        "entropy_low": pytest.approx(math.nan, nan_ok=True),
        "entropy_high": pytest.approx(math.nan, nan_ok=True),
        "label_a": "broad",
        "label_b": "[SEP]",
    }
    spread = np.std([1, 2, 3, 4, 2, 2, 3, 8])
    np.testing.assert_allclose(change["entropy"].far(), placed([1, 0, 0, 4]) / spread)
    assert "change of entropy: +0 to +4" in repr(change["entropy"])
    with pytest.raises(InputError, match="2 layers of 3 heads and 1 layers of 2 heads"):
        replace(a, layers=(3,), heads=((0, 2),)).minus(b)
    with pytest.raises(InputError, match="share no measure"):
        replace(a, columns={}).minus(b)
    gaps = replace(b, broken=frozenset({(3, 2)}), left_out={"norm": "no values"}).minus(a)
    assert (gaps.broken, gaps.left_out) == (frozenset({(3, 2)}), {"norm": "no values"})
    one, three = stacked([a], "documents"), stacked([a, b, b], "documents")
    for other in (one, a, replace(three, along={"documents": (0, 1, 5)})):
        with pytest.raises(InputError, match=r"different entries: .* and documents \[0, 1, 2\]"):
            three.minus(other)


def test_a_mean_over_documents_is_paired_and_has_students_interval() -> None:
    """Document by document in plain Python; a document without a number on one side counts on neither."""
    generator = np.random.default_rng(0)
    sides = [[placed(generator.normal(size=4).tolist()) for _ in range(4)] for _ in range(2)]
    sides[0][1][0, 0] = np.nan
    sides[1][2][1, 2] = np.nan
    for documents in sides:
        for document in documents:
            document[1, 1] = np.nan
    sides[0][0][1, 1] = sides[1][0][1, 1] = 1.0
    tables = [
        stacked([HeadTable({"entropy": HeadValues.of(ENTROPY, of)}, (3, 5), HEADS) for of in documents], "documents")
        for documents in sides
    ]
    change = tables[1].minus(tables[0]).over("documents")
    assert not change.along
    found = change["entropy"]
    assert len(found.sides) == 2
    assert (found.over, found.interval) == ("documents", "t")
    percentiles = {3: 4.303, 4: 3.182}  # Student's t at 97.5 % with 2 and 3 degrees of freedom
    for _, position in PLACES:
        pairs = [(a[position], b[position]) for a, b in zip(*sides, strict=True)]
        pairs = [(a, b) for a, b in pairs if not math.isnan(a + b)]
        apart = [b - a for a, b in pairs]
        n = len(apart)
        mean = sum(apart) / n
        assert found[position] == pytest.approx(mean)
        assert found.a[position] == pytest.approx(sum(a for a, _ in pairs) / n)
        assert found.b[position] == pytest.approx(sum(b for _, b in pairs) / n)
        assert found.low is not None
        assert found.high is not None
        if n < 2:
            assert np.isnan(found.low[position])
            continue
        half = percentiles[n] * math.sqrt(sum((x - mean) ** 2 for x in apart) / (n - 1) / n)
        assert found.low[position] == pytest.approx(mean - half, rel=1e-3)
        assert found.high[position] == pytest.approx(mean + half, rel=1e-3)
    assert np.isnan(found[0, 1])
    mean, low, _ = mean_interval(np.array([[1.0], [math.nan]]))
    assert mean == 1
    assert np.isnan(low)


def test_numbers_are_scaled_to_the_measures_range_or_that_of_the_numbers() -> None:
    """From 0 to 4, as entropies have no upper bound; from -2 to 2, as effects have no bound at all."""
    np.testing.assert_array_equal(table([1, 2, 3, 4])["entropy"].scaled(), placed([0.25, 0.5, 0.75, 1]))
    np.testing.assert_array_equal(HeadValues.of(CHANGE, placed([-2, 0, 1, 2])).scaled(), placed([0, 0.5, 0.75, 1]))
    np.testing.assert_array_equal(table([0, 0, 0, 0])["entropy"].scaled(), placed([0, 0, 0, 0]))
    share = HeadValues.of(Measure("previous"), placed([0.1, 0.2, 0.3, 0.4])).scaled()
    np.testing.assert_array_equal(share, placed([0.1, 0.2, 0.3, 0.4]))


@pytest.mark.parametrize("record", [HeadValues, Effects])
def test_no_attribute_has_the_name_of_a_method_of_arrays(record: type) -> None:
    """`np.mean(values)` would call `values.mean`."""
    names = {field.name for field in fields(record)} | {name for name in dir(record) if not name.startswith("_")}
    assert not {name for name in names if callable(getattr(np.ndarray, name, None))}
