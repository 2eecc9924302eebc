"""The page's contents, without a browser: the trace file, its size, the HTML around it."""

from __future__ import annotations

import base64
import dataclasses
import importlib.util
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from safetensors.numpy import load as read

import headscope as hs
from commands import python
from headscope import pages
from headscope.checkpoint import model_name
from headscope.errors import InputError
from headscope.heads import grid
from headscope.page import html, trace
from headscope.page.trace import page_bytes
from making import sealed_trace

WEB = Path(__file__).parents[2] / "web"


def view_of(raw: bytes) -> dict[str, object]:
    length = int.from_bytes(raw[:8], "little")
    result: dict[str, object] = json.loads(json.loads(raw[8 : 8 + length])["__metadata__"]["headscope.view"])
    return result


def test_the_page_s_file_is_a_trace_file(cat: hs.Trace, tmp_path: Path) -> None:
    again = hs.load(sealed_trace(tmp_path / "cat.safetensors", page_bytes(cat)))
    assert (again.tokens, again.text, again.pair, again.precision) == (cat.tokens, cat.text, cat.pair, "fp16")
    for layer, head in ((0, 0), (1, 1)):
        rows = np.asarray(again[layer, head].weights)
        np.testing.assert_allclose(rows, np.asarray(cat[layer, head].weights), atol=1e-3)
        np.testing.assert_allclose(rows.sum(-1), 1, atol=1e-5)


SAVED = """
import hashlib, sys
import headscope as hs
from headscope.page.trace import page_bytes
trace = hs.open().trace("She took off her hat.")
for content in (page_bytes(trace), trace.save(sys.argv[1]).read_bytes()):
    print(hashlib.sha256(content).hexdigest())
"""


def test_every_interpreter_writes_the_same_bytes(tmp_path: Path) -> None:
    first, other = (
        python(SAVED, tmp_path / f"{seed}.safetensors", env={**os.environ, "PYTHONHASHSEED": seed}).split()
        for seed in ("1", "2")
    )
    assert first == other
    header = (tmp_path / "1.safetensors").read_bytes()[8:]
    assert header.index(b'"format"') < header.index(b'"headscope"')


def test_narrowed_layers_and_heads_keep_their_numbers(cat: hs.Trace, tmp_path: Path) -> None:
    part = hs.load(sealed_trace(tmp_path / "part.safetensors", page_bytes(cat, layers=[1], heads=[1])))
    assert (part.numbers, part.head_numbers(1)) == ((1,), (1,))
    np.testing.assert_allclose(np.asarray(part[1, 1].weights), np.asarray(cat[1, 1].weights), atol=1e-3)
    with pytest.raises(InputError, match="layer 7"):
        page_bytes(cat, layers=[7])
    with pytest.raises(InputError, match="fp8"):
        page_bytes(cat, dtype="fp8")


def test_numbers_that_fp16_is_too_narrow_for_are_in_fp32(cat: hs.Trace) -> None:
    """Values, and the norms made of them; all other numbers are in fp16."""
    first, last = cat.layers
    assert last.v is not None
    loud = cat.replaced(layers=[first, dataclasses.replace(last, v=last.v * np.float32(1e7))])
    half, whole = read(page_bytes(loud)), read(page_bytes(loud, dtype="fp32"))
    for name in ("layers.1.v", "view.value_norms", "view.writes", "view.shares", "view.readers", "layers.1.q"):
        np.testing.assert_allclose(half[name].astype(np.float32), whole[name], rtol=2e-3, atol=2e-3)
    plain = read(page_bytes(cat))
    kept = {name for name in half if half[name].dtype != plain[name].dtype}
    assert kept == {"layers.1.v", "view.value_norms", "view.writes"}


def test_a_notebook_shows_the_text_of_a_trace_whose_layers_differ_in_their_heads(
    cat: hs.Trace, capsys: pytest.CaptureFixture[str]
) -> None:
    """IPython would print the traceback of an error."""
    uneven = cat.replaced(layers=[cat.layers[0], cat.layers[1].of_heads([1])])
    shown, _ = DisplayFormatter().format(uneven)
    assert list(shown) == ["text/plain"]
    assert "the layers have 2, 1 heads; choose heads that every layer has" in shown["text/plain"]
    assert capsys.readouterr() == ("", "")
    assert "text/html" in DisplayFormatter().format(cat)[0]


def test_what_heads_write_is_the_trace_s_own_output(cat: hs.Trace) -> None:
    contents = read(page_bytes(cat, dtype="fp32"))
    outputs = np.stack([[cat[layer, head].output for head in range(2)] for layer in range(2)])
    np.testing.assert_allclose(contents["view.writes"], np.linalg.norm(outputs, axis=-1), rtol=2e-3)
    total = outputs.sum(1, keepdims=True)
    shares = (outputs * total).sum(-1) / (total * total).sum(-1)
    np.testing.assert_allclose(contents["view.shares"], shares, atol=2e-3)
    np.testing.assert_allclose(contents["view.shares"].astype(np.float32).sum(1), 1, atol=3e-3)
    values = np.linalg.norm(cat[1, 0].v @ cat.source.W_O(1, 0), axis=-1)
    np.testing.assert_allclose(contents["view.value_norms"][1, 0], values, rtol=2e-3)


def test_values_go_in_where_they_are_small_or_asked_for(cat: hs.Trace) -> None:
    assert "layers.0.v" in read(page_bytes(cat))
    assert "layers.0.v" not in read(page_bytes(cat, values=False))


@pytest.mark.parametrize(("values", "message"), [(None, True), (True, False), (False, False)])
def test_where_values_are_left_out_unasked_the_closing_line_says_so(
    cat: hs.Trace, monkeypatch: pytest.MonkeyPatch, values: bool | None, message: bool
) -> None:
    _, small = html.offline_page(cat, notify=pytest.fail)
    assert "values=true" not in small
    monkeypatch.setattr(trace, "VALUES_UP_TO", 10)
    _, line = html.offline_page(cat, notify=pytest.fail, values=values)
    assert ("values=true" in line) is message


def test_the_html_holds_that_very_file_and_no_address(cat: hs.Trace, cat_file: Path) -> None:
    text = cat_file.read_text(encoding="utf-8")
    contents = re.search(r'id="hs-trace-0">([^<]*)<', text)
    inside, built = base64.b64decode(contents[1]), page_bytes(cat)
    assert view_of(inside) == view_of(built)
    for name, array in read(built).items():
        np.testing.assert_array_equal(read(inside)[name], array)
    assert not re.search(r'(?:src|href)="?https?:', text)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")


@pytest.mark.parametrize("word", ["</script>", "<!--", "\u2028", "&amp;", "]]>"])
def test_what_the_page_is_told_cannot_end_its_element(word: str) -> None:
    text = pages.inert({"a": word})
    assert json.loads(text) == {"a": word}
    assert not set("<>&\u2028") & set(text)


def test_a_long_text_is_measured_in_runs_of_queries(cat: hs.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MEASURED_CELLS", len(cat) ** 2 // 3)
    monkeypatch.setattr(grid, "RUN", 2)
    raw = page_bytes(cat, dtype="fp32")
    assert view_of(raw)["measured"] == 3
    rows = [row for row in range(len(cat)) if row // 2 % 3 == 0]
    contents = read(raw)
    for layer, head in ((0, 1), (1, 0)):
        weights = np.asarray(cat[layer, head].weights)[rows]
        names = list(view_of(raw)["statistics"])  # type: ignore[call-overload]
        assert contents["view.statistics"][names.index("strongest"), layer, head] == pytest.approx(
            weights.max(-1).mean()
        )
        np.testing.assert_allclose((contents["view.thumbs"][layer, head][rows] / 255) ** 2, weights, atol=8e-3)
        np.testing.assert_allclose(contents[f"layers.{layer}.lse"], cat.layers[layer].lse)


def test_a_large_trace_stands_in_the_page_in_pieces(cat: hs.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "CHUNK", 3000)
    raw = page_bytes(cat)
    text = html.page([raw], home="file", title="cat").decode()
    pieces = re.findall(r'id="hs-trace-0(?:-\d+)?">([^<]*)<', text)
    assert len(pieces) == -(-len(raw) // 3000)
    assert b"".join(base64.b64decode(piece) for piece in pieces) == raw


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("-", "headscope tiny"),
        ("/a/b/my-bert", "my-bert"),
        ("org/bert", "org/bert"),
        ("/site-packages/my_minilm/model", "my_minilm/model"),
        ("/runs/ner/checkpoint-500", "ner/checkpoint-500"),
        ("/a/b/best-bert-7", "best-bert-7"),
        ("/hub/models--owner--bert-base/snapshots/86b5e0934494bd15c9632b12f734a8a67f723594", "owner/bert-base"),
    ],
)
def test_models_are_called_as_people_call_them(model: str, name: str) -> None:
    assert model_name(model) == name


def test_a_page_of_tokens_is_called_by_its_words(bert: hs.Model) -> None:
    trace = bert.trace("The tired cat")
    assert trace.tokens[2:4] == ("tir", "##ed")
    assert html.default_title(trace.replaced(text=None)).startswith("[CLS] the tired cat [SEP] · ")


def test_findings_stand_in_the_header() -> None:
    """Of heads that are held only; with the cell to open on; none of a text that is measured in part."""
    model = hs.open("-")
    trace = model.trace("The animal did not cross the street because it was too tired.")
    view = view_of(page_bytes(trace))
    expected = [finding.as_dict() for finding in trace.findings()]
    records = view["findings"]
    assert records == json.loads(json.dumps(expected))
    links = [one["cells"][0] for one in expected if one["kind"] == "link"]
    if links:
        assert view["opening"] == links[0]
    part = view_of(page_bytes(trace, layers=[0], heads=[1]))["findings"]
    assert isinstance(part, list)
    assert all((cell["layer"], cell["head"]) == (0, 1) for one in part for cell in one["cells"])


def test_a_page_opens_on_a_link_between_words(cat: hs.Trace, bert: hs.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a link among the findings: the strongest pair of words, in the sharpest head that does not rest."""
    # every head is positional, or looks at the first token: then on the first finding
    cell = cat.findings()[0].cells[0]
    opening = {"layer": cell.layer, "head": cell.head, "query": cell.query, "key": cell.key}
    assert view_of(page_bytes(cat))["opening"] == opening
    assert view_of(page_bytes(bert.trace("cat")))["opening"] is None
    trace = hs.open("-").trace("The tired old dog chased a small cat across the wet garden.")
    monkeypatch.setattr("headscope.page.trace.findings", lambda *_, **__: ())
    opening = view_of(page_bytes(trace, dtype="fp32"))["opening"]
    sharpest: tuple[float, int, int] = (-1.0, 0, 0)
    words = [n for n, token in enumerate(trace.tokens) if token.isalpha() and token not in ("the", "a", "across")]
    for layer in trace.numbers:
        for head in trace.head_numbers(layer):
            weights = np.asarray(trace[layer, head].weights)
            size = len(weights)
            rest = [weights[:, n].mean() for n, special in enumerate(trace.special) if special]
            rest += [np.diagonal(weights, step).mean() for step in (-1, 0, 1)]
            rest.append(weights[:, [n for n in range(size) if trace.tokens[n] == "."]].sum(-1).mean())
            if max(rest) <= 0.5:
                sharpest = max(sharpest, (float(weights.max(-1).mean()), layer, head))
    _, layer, head = sharpest
    weights = np.asarray(trace[layer, head].weights)
    pairs = [(weights[i, j], i, j) for i in words for j in words if trace.words[i] != trace.words[j]]
    weight, query, key = max(pairs)
    expected = {"layer": layer, "head": head, "query": query, "key": key} if weight > 0.1 else None
    assert opening == expected
    monkeypatch.setattr(grid, "MEASURED_CELLS", 1)
    assert (view_of(page_bytes(trace))["findings"], view_of(page_bytes(trace))["opening"]) == (None, None)


def test_a_large_page_says_so_first(cat: hs.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "LARGE", 1000)
    with pytest.warns(html.LargePageWarning, match=r"layers=\[…\]"):
        cat.to_html(tmp_path / "large.html")


@pytest.mark.parametrize(("name", "most"), [("page", 92_670), ("typed", 96_030), ("report", 41_220)])
def test_a_page_s_own_code_is_small(name: str, most: int) -> None:
    import gzip

    assert len(gzip.compress(pages.template(name).encode())) < most


def test_the_fixture_of_the_page_s_own_tests_is_what_python_writes(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_fixture", WEB / "tests" / "make_fixture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write(tmp_path)
    kept, built = (json.loads((folder / "fixture.json").read_text()) for folder in (WEB / "tests", tmp_path))
    for layer in range(len(kept["weights"])):
        np.testing.assert_allclose(built["weights"][layer], kept["weights"][layer], atol=1e-6)
    views = [view_of((folder / "fixture.safetensors").read_bytes()) for folder in (WEB / "tests", tmp_path)]
    for view in views:  # findings hold numbers as this machine rounds them
        view.pop("findings", None)
        view.pop("opening", None)
    assert views[0] == views[1]
