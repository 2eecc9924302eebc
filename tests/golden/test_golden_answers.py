"""Effects, attributions, comparisons, surveys and files of the golden models: what Python returns, what is printed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from safetensors.numpy import load
from typer.main import get_command

import headscope as hs
from golden.keeping import CLOSE, KEPT, TABLES, differing, keep, page_data, plain, printed, spelled, steady
from golden.models import MORE, OPTIONS, TEXTS
from headscope.cli import app
from headscope.files import BLANK, sealed
from headscope.page.trace import page_bytes
from making import write_safetensors

MASKED = "the queen liked the big [MASK] ."
OTHER = "the mouse found the red horse ."
CHANGES: dict[str, dict[str, Any]] = {
    "zero": {},
    "mean": {"method": "mean"},
    "patch": {"patch_from": OTHER},
    "edge": {"edge": (6, 2)},
    "word": {"target": "horse"},
    "number": {"target": ("word", 7, 6)},
    "embedding": {"target": ("embedding",)},
    "similarity": {"target": ("similarity", OTHER), "method": "mean"},
    "pair": {"pair": "the tiger heard the mouse ."},
}
"""Name -> what `model.effects` is called with beside the text."""
FACTS = ("text", "target", "method", "change", "base", "aside", "base_aside", "axis", "pair", "patch_from", "edge")
"""What is kept of effects."""

SCREENS = {
    "effects": ("effects", "base", MASKED, "--top", "4"),
    "effects-patch": ("effects", "base", MASKED, "--set", f"patch_from={OTHER}", "--target", "horse", "--at", "6"),
    "attribute": ("attribute", "base", MASKED),
    "predict": ("predict", "classifier", OTHER),
    "match": ("match", "base", OTHER, *TEXTS[:2], "--top", "3"),
    "why": ("why", "base", TEXTS[0], "1.0", "2", "3", "--top", "3"),
    "compare": ("compare", "base", "tuned", "--top", "3"),
    "compare-texts": ("compare", "base", "tuned", "texts", "--statistic", "entropy,previous,next", "--top", "3"),
    "compare-surveys": ("compare", "survey-base", "survey-tuned", "--top", "3"),
    "verify": ("verify", "base", MASKED),
    "pairs": ("pairs", "base", "known.conllu", "--set", "chosen_on=10", "--top", "3"),
    "attend-heads": ("attend", "base", MASKED, "--statistic", "previous"),
}
"""Name -> a command, whose screen and JSON are kept."""

ROUNDING = {"worst", "layer", "head", "query", "key", "text", "ours", "theirs", "tolerance", "gap"}
"""Of a check, where the greatest rounding error is, and its size."""


CHECKED = ("verify",)
"""Commands whose screens show the sizes of rounding errors, or their places."""


def record(value: Any) -> Any:
    """A result: as text, and its fields; a text's tokens as texts."""
    if hasattr(value, "__dataclass_fields__"):
        parts = {field.name: record(getattr(value, field.name)) for field in fields(value)}
        return parts["tokens"] if "spans" in parts else {"text": str(value), **parts}
    return [record(item) for item in value] if isinstance(value, tuple) else value


@pytest.fixture(scope="module")
def model(place: Path) -> hs.Model:
    return hs.open(place / "base")


@pytest.mark.parametrize("name", CHANGES)
def test_effects(name: str, model: hs.Model, request: pytest.FixtureRequest) -> None:
    given = dict(CHANGES[name])
    text = MASKED if name not in ("embedding", "similarity") else TEXTS[1]
    result = model.effects(text, given.pop("target", None), **given)
    facts = {fact: record(getattr(result, fact)) for fact in FACTS}
    keep(request, f"effects-{name}", {**facts, "strongest": result.strongest(4)})


@pytest.mark.parametrize("method", ["zero", "mean", "patch"])
def test_effects_over_texts(method: str, model: hs.Model, request: pytest.FixtureRequest) -> None:
    texts = [MASKED, "the tiger heard the red [MASK] .", "the sheep often found the [MASK] ."]
    how: dict[str, Any] = {"patch_from": [OTHER] * len(texts)} if method == "patch" else {"method": method}
    result = model.effects(texts, "horse", **how)
    value = {"mean": result.array, "low": result.low, "high": result.high}
    keep(request, f"effects-over-texts-{method}", {"repr": repr(result), **value, "strongest": result.strongest(4)})


def test_attributions(model: hs.Model, request: pytest.FixtureRequest) -> None:
    keep(request, "attribution-decompx", record(model.attribute(MASKED)))


@pytest.mark.parametrize("name", ["weights", "texts", "surveys"])
def test_comparisons(name: str, surveyed: Path, model: hs.Model, request: pytest.FixtureRequest) -> None:
    if name == "surveys":
        result = hs.compare(surveyed / "survey-base", surveyed / "survey-tuned")
    else:
        result = hs.compare(model, surveyed / "tuned", TEXTS if name == "texts" else None)
    value = {
        "repr": repr(result).replace(str(surveyed), "FOLDER").replace(surveyed.as_posix(), "FOLDER"),
        "rows": columns(result.rows()),
        "parts": result.parts,
        "outside": result.outside,
        "left_out": result.left_out,
        "notes": result.notes,
        "documents": result.documents,
        "differs": result.differs,
        "strongest": result.strongest(4),
        "strongest_statistic": result.strongest_statistic(),
        "schema": {field.name: str(field.type) for field in result.arrow().schema},
    }
    keep(request, f"comparison-{name}", value)


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """A list of rows, by column."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_the_json_of_every_command_is_kept() -> None:
    """Here or in test_golden.py."""
    group: Any = get_command(app)
    context = group.context_class(group, info_name="headscope")
    kept = {path.stem.removeprefix("answer-") for path in KEPT.glob("*.json")}
    for name in group.list_commands(context):
        if any("--json" in one.opts for one in group.get_command(context, name).params):
            assert name in kept


@pytest.mark.parametrize("name", SCREENS)
def test_screens(name: str, surveyed: Path, request: pytest.FixtureRequest) -> None:
    machine = json.loads(printed(surveyed, *SCREENS[name], "--json"))
    if name in CHECKED:
        for check in machine["checks"]:
            for field in ROUNDING & check.keys():
                del check[field]
    screen = {} if name in CHECKED else {"screen": printed(surveyed, *SCREENS[name])}
    keep(request, f"answer-{name}", {**screen, "json": machine})


# Surveys with everything, of the golden model and of the bundled one: files, tables, pages, screens.


def test_the_files(surveyed: Path, request: pytest.FixtureRequest) -> None:
    folder = surveyed / "survey-base"
    survey = hs.Survey(folder)
    value = {
        "files": sorted(str(path.relative_to(folder).as_posix()) for path in folder.rglob("*") if path.is_file()),
        "manifest": steady(survey.manifest),
        "repr": repr(survey).replace(str(folder), "FOLDER"),
    }
    keep(request, "survey-files", value)
    machine = json.loads((surveyed / "survey-base.json").read_text(encoding="utf-8"))
    assert {**survey.aggregates, "schema": "headscope/survey", "version": 1} == machine


@pytest.mark.parametrize("name", TABLES)
def test_the_tables(name: str, surveyed: Path, request: pytest.FixtureRequest) -> None:
    keep(request, f"survey-{name}", getattr(hs.Survey(surveyed / "survey-base"), name))


def test_the_numbers(surveyed: Path, request: pytest.FixtureRequest) -> None:
    survey = hs.Survey(surveyed / "survey-base")
    rows = survey.windows()
    value = {
        "means": {name: survey[name] for name in survey},
        "q95": survey.measure("entropy", "q95"),
        "rows": {name: rows[name].to_numpy() for name in rows.column_names if name not in ("document", "file")},
        "schema": {field.name: str(field.type) for field in rows.schema},
        "examples": {f"{layer}.{head}": repr(survey.examples[layer, head]) for layer in range(2) for head in range(5)},
        "similarity": parquet.read_table(survey.folder / "similarity.parquet"),
    }
    keep(request, "survey-numbers", value)


def test_the_pages(surveyed: Path, request: pytest.FixtureRequest) -> None:
    site = surveyed / "survey-base" / "site"
    pages = {name: page_data(site / name) for name in ("index.html", "head-0-3.html")}
    for line in pages["head-0-3.html"]["hs-heads"][0]["lines"]:
        line["ink"] = [ink / 1000 for ink in line["ink"]]
    keep(request, "survey-pages", steady(pages), close=2e-3)  # pages have rounded numbers


def test_the_screen(surveyed: Path, request: pytest.FixtureRequest) -> None:
    """Of the finished survey, which is not made again."""
    words = ("survey", "base", "known.conllu", "--out", "survey-base", *OPTIONS, *MORE)
    screen = printed(surveyed, *words, "--set", "report=false")
    machine = json.loads((surveyed / "survey-base.json").read_text(encoding="utf-8"))
    keep(request, "answer-survey", {"screen": screen, "json": steady(machine)})


TREEBANK = Path(__file__).parents[1] / "data" / "treebank" / "en_pud-first20.conllu"
EVERYTHING: dict[str, Any] = {"labels": True, "examples": 1, "effects": 6, "writes": 12, "head_distances": 4}
NEAR = 2e-4
"""Most that a number may differ, of its size or of 1: fp32 through all layers, a softmax and a logarithm."""
TEXT = "The cat sat on the mat because it was tired."


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> hs.Survey:
    folder = tmp_path_factory.mktemp("bundled") / "out"
    return hs.survey("-", TREEBANK, out=folder, length=96, threads=1, report=False, **EVERYTHING)


@pytest.mark.parametrize("name", [*TABLES, "writes"])
def test_the_tables_of_the_bundled_model(name: str, survey: hs.Survey, request: pytest.FixtureRequest) -> None:
    """Its heads' margins are a real model's, not as wide as those of models.py."""
    keep(request, f"bundled-{name}", getattr(survey, name), close=NEAR)


def test_the_statistics_and_distances(survey: hs.Survey, request: pytest.FixtureRequest) -> None:
    value = {
        "statistics": {name: survey[name] for name in survey},
        "distances": parquet.read_table(survey.folder / "similarity.parquet"),
        "manifest": steady(survey.manifest),
    }
    keep(request, "bundled-survey", value, close=NEAR)


def test_the_packed_trace_of_a_page(request: pytest.FixtureRequest) -> None:
    """Every tensor, and all that the header says of it."""
    raw = page_bytes(hs.open("-").trace(TEXT), dtype="fp32")
    size = int.from_bytes(raw[:8], "little")
    about = json.loads(raw[8 : 8 + size])["__metadata__"]
    header = {name: json.loads(said) if said[:1] in "{[" else said for name, said in sorted(about.items())}
    keep(request, "bundled-page", {"header": header, "tensors": dict(sorted(load(raw).items()))}, close=NEAR)


# The comparison of goldens itself: what is a difference, and what is rounding.


VALUE = {"a": [1, 2.5, "head 0.3: 12.5 % of 0.0012"], "b": {"c": None, "d": True}, "e": []}


def changed(**other: Any) -> dict[str, Any]:
    return {**VALUE, **other}


@pytest.mark.parametrize(
    ("new", "line"),
    [
        (changed(a=[1, 2.5001, VALUE["a"][2]]), ".a[1] is 2.5001, was 2.5"),
        (changed(a=[1.0, 2.5, VALUE["a"][2]]), ".a[0] is 1.0, was 1"),
        (changed(a=[1, 2.5, "head 0.3: 12.7 % of 0.0012"]), ".a[2] is 'head 0.3: 12.7 % of 0.0012', was"),
        (changed(a=[1, 2.5, "head 0.3: 12.5 % of 0.0012."]), ".a[2] is"),
        (changed(a=[1, 2.5]), ".a has 2 items, had 3"),
        (changed(b={"c": None, "d": 1}), ".b.d is 1, was True"),
        (changed(b={"d": True, "c": None}), ".b: the order is d, c"),
        (changed(b={"c": None}), ".b.d is gone"),
        (changed(f=0), ".f is new"),
        (changed(e={}), ".e is {}, was []"),
    ],
)
def test_differences(new: Any, line: str) -> None:
    (only,) = differing(new, VALUE, CLOSE)
    assert only.startswith(line)


def test_rounding() -> None:
    new = changed(a=[1, 2.5 + CLOSE, "head 0.3: 12.6 % of 0.0013"])
    assert list(differing(new, VALUE, CLOSE)) == []


def test_arrays_are_told_apart_by_sums_that_depend_on_all_cells() -> None:
    array = np.random.default_rng(0).normal(size=(30, 40)).astype(np.float32)
    kept = plain({"array": array})
    assert list(differing(plain({"array": array.copy()}), kept, CLOSE)) == []
    swapped = array.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    for other in (swapped, array.T.copy().reshape(30, 40), array.astype(np.float64), array[:29]):
        assert list(differing(plain({"array": other}), kept, CLOSE))


def test_json_is_what_was_written() -> None:
    assert json.loads(spelled(VALUE)) == VALUE


# The bytes of trace files: two written by hand, as docs/trace-format.md has them, read and saved again. Every array
# holds whole numbers, so that the bytes are the same on every processor.


TOKENS = 5
HEADS = 2
WIDTH = 4


def whole(*shape: int, start: int = 0) -> np.ndarray:
    """Small whole numbers, which both precisions hold exactly."""
    return ((np.arange(np.prod(shape)) * 7 + start) % 23 - 11).reshape(shape).astype(np.float32)


def axis(tokens: int, **other: Any) -> dict[str, Any]:
    return {
        "tokens": ["[CLS]", "caf\u00e9", "##ing", "\U0001f408", "[SEP]"][:tokens],
        "ids": list(range(101, 101 + tokens)),
        "segments": [0, 0, 0, 1, 1][:tokens],
        "special": [True, False, False, False, True][:tokens],
        "words": [None, 0, 0, 1, None][:tokens],
        "spans": [None, [0, 4], [4, 7], [0, 1], None][:tokens],
        **other,
    }


def arrays(layer: int, *, kv_heads: int = HEADS, keys: int = TOKENS) -> dict[str, np.ndarray]:
    stem = f"layers.{layer}"
    return {
        f"{stem}.q": whole(HEADS, TOKENS, WIDTH, start=layer),
        f"{stem}.k": whole(kv_heads, keys, WIDTH, start=3 + layer),
        f"{stem}.v": whole(kv_heads, keys, WIDTH, start=5 + layer),
        f"{stem}.lse": whole(HEADS, TOKENS, start=9) + 20,
    }


def layer_of(**other: Any) -> dict[str, Any]:
    rest = {"causal": False, "window": None, "name": "", "number": None, "numbers": None}
    return {"scale": 0.5, "stage": "projected", **rest, **other}


def without_terms() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """A trace without score terms: version 1."""
    tensors = {**arrays(0), **arrays(1), "outputs.last_hidden_state": whole(TOKENS, 8), "outputs.logits": whole(3)}
    tensors["layers.1.mask.keys"] = np.array([True, True, False, True, True])
    tensors["layers.1.lse"] = tensors["layers.1.lse"].astype(np.float64)
    about = {
        "model": "a/model",
        "fingerprint": "ab" * 32,
        "text": "caf\u00e9ing",
        "pair": "\U0001f408",
        "queries": axis(TOKENS),
        "keys": None,
        "layers": [layer_of(), layer_of(causal=True, window=[2, None], stage="rotated", name="encoder.1", number=4)],
        "outputs": {
            "last_hidden_state": {"dims": ["tokens", "d_model"], "labels": None},
            "logits": {"dims": ["labels"], "labels": ["bad", "fair", "good"]},
        },
        "ablated": [[0, 1], [4, 0]],
        "stack": "self",
        "unrecorded": ["layers without attention"],
        "cut": {"row": 2, "queries": [1, 2, 3, 4, 6], "keys": [1, 2, 3, 4, 6], "sizes": [8, 8]},
    }
    return tensors, {"version": 1, **about}


def with_terms() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Cross-attention with every score term, grouped keys and a bias: version 2."""
    keys = 3
    tensors = {**arrays(0, kv_heads=1, keys=keys), **arrays(1, keys=keys)}
    stem = "layers.0"
    tensors[f"{stem}.mask.bias"] = whole(1, TOKENS, keys)
    tensors[f"{stem}.terms.buckets"] = (np.arange(TOKENS + keys - 1) % 4).astype(np.int32)
    tensors[f"{stem}.terms.by_distance"] = whole(HEADS, 4)
    tensors[f"{stem}.terms.by_key"] = whole(HEADS, keys)
    tensors[f"{stem}.terms.sinks"] = whole(HEADS)
    stem = "layers.1"
    tensors[f"{stem}.terms.buckets"] = (np.arange(TOKENS + keys - 1) % 2).astype(np.int32)
    tensors[f"{stem}.terms.relative_keys"] = whole(HEADS, 2, WIDTH)
    tensors[f"{stem}.terms.relative_queries"] = whole(HEADS, 2, WIDTH, start=2)
    about = {
        "model": "",
        "fingerprint": "",
        "text": None,
        "pair": None,
        "queries": axis(TOKENS),
        "keys": axis(keys, spans=[None] * keys),
        "layers": [layer_of(cap=50.0), layer_of(numbers=[1, 3])],
        "outputs": {},
        "ablated": [],
        "stack": "cross",
        "unrecorded": [],
        "cut": None,
    }
    return tensors, {"version": 2, **about}


@pytest.mark.parametrize("kind", ["plain", "with-terms"])
def test_a_file_is_read_and_saved_again(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    tensors, about = without_terms() if kind == "plain" else with_terms()
    about = {"format": "headscope.trace", **about}
    metadata = {"format": "headscope.trace", "headscope": json.dumps(about), "seal": BLANK.decode()}
    path = write_safetensors(tmp_path / "trace.safetensors", tensors, metadata)
    path.write_bytes(sealed(path.read_bytes()))
    trace = hs.load(path)
    value: dict[str, Any] = {
        "repr": repr(trace),
        "stack": trace.stack,
        "tokens": trace.tokens,
        "numbers": trace.numbers,
    }
    for dtype, values in (("fp32", True), ("fp16", True), ("fp32", False)):
        data = trace.save(tmp_path / "saved.safetensors", dtype=dtype, values=values).read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        written = header.pop("__metadata__")  # a map, whose order is the safetensors library's
        assert json.loads(written["headscope"]) == about
        assert set(written) == set(metadata)
        value[f"{dtype} {'with' if values else 'without'} values"] = {
            "metadata": hashlib.sha256(written["headscope"].encode()).hexdigest(),
            "tensors": {name: " ".join(map(str, entry.values())) for name, entry in header.items()},
            "data": hashlib.sha256(data[end:]).hexdigest(),
            "bytes": len(data),
        }
        again = hs.load(tmp_path / "saved.safetensors")
        for layer, record in enumerate(again.layers):
            assert np.array_equal(record.q, tensors[f"layers.{layer}.q"])
            assert np.array_equal(record.lse, tensors[f"layers.{layer}.lse"])
    keep(request, f"trace-bytes-{kind}", value)
