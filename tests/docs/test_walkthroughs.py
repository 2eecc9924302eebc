"""The documentation site: pages in their places and fit to be read, walkthroughs that run, nothing from elsewhere.

`mkdocs build --strict` runs the walkthroughs themselves, once, in CI. Here is what makes that build worth something.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import pkgutil
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import headscope as hs
from explain.tops import readable

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "tools"))

import blocks  # noqa: E402
import hooks  # noqa: E402
import walk  # noqa: E402

SETTINGS: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
PAGES = ["bert-large", "parameters", "architecture", "one-head", "multihead-attention", "classifier"]
PAGES += ["effects", "attribution", "similarity", "finetuning", "atlas", "ranking"]
RUN = [*(f"walkthroughs/{page}" for page in PAGES), "recipes", "labels"]
QUESTIONS = ["checkpoint", "head", "answer", "similarity", "finetuning", "heads", "trust"]
WITH_LIVE_PAGES = [*(f"walkthroughs/{page}" for page in PAGES), *(f"questions/{page}" for page in QUESTIONS), "gallery"]
AT = re.compile(r'\bat=f?"([^"]*)"')
FENCE = re.compile(r"^( *)```python([^\n]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def pages(nav: Any) -> list[str]:
    """The files of a nav, in order."""
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in pages(part)]


def fences(page: str) -> list[tuple[str, str]]:
    """(options, code) of each Python block of a page."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return [
        (options, "\n".join(line.removeprefix(indent) for line in code.splitlines()))
        for indent, options, code in FENCE.findall(text)
    ]


def test_every_page_has_its_place_in_the_nav() -> None:
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    languages = {page for page in there if re.search(r"\b(ja|zh)\.md$", page)}
    assert set(pages(SETTINGS["nav"])) == there - languages
    assert [entry["link"] for entry in SETTINGS["extra"]["alternate"]] == ["index.html", "ja.html", "zh.html"]
    assert [page for page in pages(SETTINGS["nav"]) if page.startswith("walkthroughs/")][1:] == [
        f"walkthroughs/{page}.md" for page in (*PAGES[:11], "live", *PAGES[11:])
    ]


def test_the_build_runs_the_code_and_ci_runs_the_build() -> None:
    assert "docs/tools/hooks.py" in SETTINGS["hooks"]
    assert SETTINGS["theme"]["font"] is False
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if "mkdocs build --strict" in line and "--quiet" not in line and line[0] != "#"], (
        "and without --quiet: it switches --strict off"
    )


def test_all_code_of_a_walkthrough_is_run_and_asserts_its_numbers() -> None:
    """What a block prints is on the page."""
    for page in RUN:
        run = [(options, code) for options, code in fences(page) if 'exec="on"' in options]
        only_shown = [code for options, code in fences(page) if 'exec="on"' not in options]
        assert all("from_pretrained(" in code for code in only_shown), (page, "else it is run")
        sessions = {found for options, _ in fences(page) for found in re.findall(r'session="([^"]*)"', options)}
        assert len(sessions) == 1, (page, "one session for all blocks of a page")
        asserted = sum(isinstance(node, ast.Assert) for _, code in run for node in ast.walk(ast.parse(code)))
        assert asserted >= 5, page
        assert any("hs." in code for _, code in run[-3:]), (page, "it ends with headscope")
        for options, code in run:
            assert ('result="text"' in options or 'html="on"' in options) == ("print(" in code), (page, code)


def test_a_question_is_answered_shortly() -> None:
    """An answer in words, a command, Python that asserts its numbers, and what it does not tell."""
    for page in QUESTIONS:
        text = (DOCS / "questions" / f"{page}.md").read_text(encoding="utf-8")
        assert 40 <= len(text.splitlines()) <= 90, page
        assert text.split("\n")[0].endswith("?"), page
        assert not text.split("\n")[2].startswith(("`", "#", "|")), (page, "it opens with words")
        assert ("screen(" in text) or re.search(r"^ {4}headscope ", text, re.MULTILINE), page
        assert re.findall(r"^## (.*)", text, re.MULTILINE)[-1] == "What this does not tell", page
        assert "## In Python" in text, page
        assert "assert " in text, page


def test_a_page_has_live_pages_that_open_on_their_point() -> None:
    """The state that each begins with has fields that the page knows."""
    fields = (ROOT / "web" / "src" / "state" / "state.ts").read_text(encoding="utf-8").split("FIELDS = {")[1]
    known = {*re.findall(r"^  (\w+):", fields.split("...APPEARANCE")[0], re.MULTILINE), "theme", "lang"}
    for page in WITH_LIVE_PAGES:
        code = "\n".join(code for _, code in fences(page))
        ast.parse(code)
        assert re.search(r"\b(page|report)\(", code), page
        for state in AT.findall(code):
            assert {part.split("=")[0] for part in state.split("&")} <= known, (page, state)


def test_a_live_page_is_written_once_and_found_from_its_page(tmp_path: Path) -> None:
    trace = hs.open().trace("A cat.")
    first = walk.page(trace, "test-page", at="l=0&h=1", says="a <b>point</b>", height=300)
    second = walk.page(trace, "test-page", says="another")
    assert [file.name for file in walk.LIVE.iterdir()] == ["test-page.html"]
    assert 'src="live:test-page.html#l=0&amp;h=1" title="a point" loading="lazy"' in first
    assert list(walk.USED) == ["test-page.html"]
    deep = hooks.on_page_content(first + second, SimpleNamespace(url="questions/head.html"))
    assert "live:" not in deep
    assert deep.count('"../live/test-page.html') == 4  # two frames, and two links to open them alone
    assert 'src="live/test-page.html"' in hooks.on_page_content(second, SimpleNamespace(url="index.html"))
    hooks.on_post_build({"site_dir": tmp_path})
    assert (tmp_path / "live" / "test-page.html").read_bytes() == (walk.LIVE / "test-page.html").read_bytes()
    hooks.on_config(None)
    assert not list(walk.LIVE.iterdir())


def test_the_front_page_is_live() -> None:
    """Below the README's first lines stands the strip, then the page."""
    for page in ("index", "ja", "zh"):
        front = hooks.with_readme((DOCS / f"{page}.md").read_text(encoding="utf-8"))
        assert "page.png" not in front, page
        above, strip_and_below = front.split("from strip import strip")
        assert above.startswith("# "), page
        assert "BERT" in above, page
        assert "README" not in above, page
        assert "from walk import minilm, page" in strip_and_below, page
        strip, picture = [code for _, options, code in FENCE.findall(front) if "exec=" in options]
        assert "strip(" in strip, page
        assert "page(trace" in picture, page


PAGE_WITH_BLOCKS = """# A page

```python exec="on" source="above" session="x" result="text"
seen = [*globals().get("seen", []), 1]
print("<1>")
```

- In a list:

    ```python exec="on" html="on" session="x"
    print(f"<p>{seen}</p>")
    ```

```python
not_run()
```
"""


def test_blocks_are_run_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "KEPT", tmp_path)
    text, html = blocks.expand(PAGE_WITH_BLOCKS, "a/page.md")
    assert text.startswith('# A page\n\n```python\nseen = [*globals().get("seen", []), 1]\n')
    assert "````text\n<1>\n````" in text
    assert "\n    <!-- block 1 -->\n" in text
    assert text.endswith("```python\nnot_run()\n```\n")
    assert html == {"<!-- block 1 -->": "<p>[1]</p>\n"}
    hooks.HTML["a/page.html"] = html
    page = SimpleNamespace(url="a/page.html")
    assert hooks.on_page_content("<p>before</p><!-- block 1 -->", page) == "<p>before</p><p>[1]</p>\n"
    monkeypatch.setattr(blocks, "run", None)  # a second build takes what the first kept
    assert blocks.expand(PAGE_WITH_BLOCKS, "a/page.md") == (text, html)
    with pytest.raises(TypeError):
        blocks.expand(PAGE_WITH_BLOCKS.replace("<1>", "<2>"), "a/page.md")


def test_a_kept_page_has_its_live_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(walk, "LIVE", tmp_path / "live")
    walk.LIVE.mkdir()
    code = "from walk import minilm, page\n\nprint(page(minilm().trace('A cat.'), 'cat', says='x'))\n"
    blocks.expand(f'```python exec="on" html="on" session="x"\n{code}```\n', "cat.md")
    (walk.LIVE / "cat.html").unlink()
    blocks.expand(f'```python exec="on" html="on" session="x"\n{code}```\n', "cat.md")
    assert (walk.LIVE / "cat.html").stat().st_size > 10_000


def test_a_block_that_raises_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "KEPT", tmp_path)
    with pytest.raises(RuntimeError, match=r"a\.md: block 1 raised AssertionError"):
        blocks.expand('```python exec="on" session="x"\nassert False\n```\n', "a.md")
    assert list(tmp_path.iterdir()) == []


def test_a_word_of_the_glossary_has_a_tooltip_where_it_is_first_used() -> None:
    words = dict(re.findall(r"^\*\[([^]]+)\]: (.*)$", hooks.tooltips(), re.MULTILINE))
    assert {"mass", "nats", "lse", "pinned", "rests on", "expansion", "DecompX"} <= words.keys()
    twice = '<abbr title="a">lse</abbr> and <abbr title="a">lse</abbr>, <abbr title="b">nats</abbr>'
    assert hooks.at_first_use(twice) == '<abbr title="a">lse</abbr> and lse, <abbr title="b">nats</abbr>'


def test_the_published_numbers_are_asserted() -> None:
    held = {page: "\n".join(code for _, code in fences(f"walkthroughs/{page}") if "assert" in code) for page in PAGES}
    assert "== 335_141_888" in held["bert-large"]
    assert "== 199" in held["parameters"]
    assert "== 109_482_240" in held["parameters"]
    for number in ("23_837_184", "85_054_464", "590_592", "7_087_872", "110_106_428", "23_440_896"):
        assert number in held["architecture"]
    for share in ("0.21772649152958506", "0.776879099295009", "0.005394409175405983"):
        assert share in held["architecture"]
    assert len(re.findall(r"\b\d\.\d{4}\b", held["multihead-attention"])) == 2 * 5 * 5 + 5 * 4 + 12


def test_the_public_names_have_a_reference() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    described = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
    last = {place.rpartition(".")[2] for place in described}
    assert "headscope.errors" in described
    for name, place in hs.LAZY.items():
        function = place.partition(":")[2] or name
        assert function in last or "errors:" in place, f"hs.{name} has no reference page"


def test_lists_and_what_stands_in_them_are_seen_as_such() -> None:
    """A list begins after an empty line, and a fence within one is four spaces in: else it is shown as running text."""
    wrong = []
    for path in sorted(DOCS.rglob("*.md")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for before, line in zip(["", *lines], lines, strict=False):
            listed = re.match(r"(-|\d+\.) ", line) and not re.match(r"$|#| |(-|\d+\.) ", before)
            wrong += [f"{path}: {line}"] if listed or re.match(r" {1,3}```", line) else []
    assert wrong == []


def test_a_list_of_the_reference_names_one_thing_in_each_line() -> None:
    """ "q, k: …" would be shown as a q of type k."""
    described = re.findall(r"^::: ([\w.]+)$", "\n".join(path.read_text() for path in DOCS.glob("reference/*.md")), re.M)
    for place in described:
        thing = pkgutil.resolve_name(place)
        own = [one for one in vars(thing).values() if getattr(one, "__module__", place).startswith("headscope")]
        for one in (thing, *own):
            assert not re.findall(r"^ +\w+, \w+[^:\n]*: ", inspect.getdoc(one) or "", re.M), f"{place}: {one}"


def test_readme_links_lead_to_pages_of_the_site() -> None:
    readme = "[view](docs/view.md) ![a](docs/images/a.png) [examples/](examples) [how](x.md) [out](https://a.org/b)"
    assert hooks.site_links(readme) == (
        "[view](view.md) ![a](images/a.png) `examples/` how (`x.md`) [out](https://a.org/b)"
    )
    front = hooks.with_readme((DOCS / "index.md").read_text(encoding="utf-8"))
    assert front.startswith("# See inside every attention head of BERT")
    assert "](docs/" not in front
    assert hooks.with_readme("another page") == "another page"


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ('<script src="https://a.org/x.js"></script>', ["https://a.org/x.js"]),
        ('<img src="//a.org/x.png">', ["//a.org/x.png"]),
        ('<link rel="stylesheet" href="https://a.org/x.css">', ["https://a.org/x.css"]),
        ("<style>@import 'https://a.org/x.css';</style>", ["https://a.org/x.css"]),
        ('<p style="background: url(https://a.org/x.png)">', ["https://a.org/x.png"]),
        ('<iframe srcdoc="&lt;img src=&quot;https://a.org/x.png&quot;&gt;"></iframe>', ["https://a.org/x.png"]),
        ('<a href="https://a.org">a link is followed by a person</a>', []),
        ('<link rel="canonical" href="https://a.org/"><img src="x.png"><img src="data:image/png;base64,AA">', []),
        ("<p>@import 'https://a.org/x.css'</p>", []),
        ('@font-face { src: url("https://a.org/x.woff2") }', ["https://a.org/x.woff2"]),
    ],
)
def test_a_page_that_asks_another_host_is_found(tmp_path: Path, page: str, found: list[str]) -> None:
    (tmp_path / ("a.css" if page.startswith("@") else "page.html")).write_text(page, encoding="utf-8")
    assert [address for _, address in hooks.outside_addresses(tmp_path)] == found


def test_a_command_that_fails_is_no_result() -> None:
    with pytest.raises(RuntimeError, match="ended with 2"):
        walk.terminal("headscope", "shapes", "no-such-folder-anywhere/at-all/really")


def test_a_screen_is_the_same_in_a_window_of_any_width() -> None:
    """A line that wraps in some windows stops the build; lines that don't can be picked from among those that do."""
    with pytest.raises(RuntimeError, match="prints other lines in 200 columns than in 80"):
        walk.printed("headscope summary -")
    assert walk.printed("headscope summary - | grep counted")[0] == "layers     4, counted from 0 to 3"


def test_consoles_and_doctests_in_the_docs_are_made_by_running_them() -> None:
    """`walk.screen` writes them; what stands in the page itself could have been typed by hand."""
    for path in DOCS.rglob("*.md"):
        assert not re.search(r"^ *```(console|pycon)", path.read_text(encoding="utf-8"), re.MULTILINE), path


def test_the_made_checkpoint_is_one_that_safetensors_reads() -> None:
    """A file without weights has the model's names and shapes, and counts a tied parameter once."""
    import torch
    from safetensors import safe_open
    from torch import nn

    with torch.device("meta"):
        model = nn.ModuleDict({"words": nn.Embedding(30, 8), "LayerNorm": nn.LayerNorm(8), "back": nn.Linear(8, 30)})
    model["back"].weight = model["words"].weight
    model.config = SimpleNamespace(name_or_path="a-name", to_dict=lambda: {"model_type": "bert"})
    folder = walk.checkpoint_without_weights(model, weight="gamma", bias="beta")
    assert folder.name == "a-name"
    with safe_open(folder / "model.safetensors", "np") as file:
        stored = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    shapes = {"words.weight": (30, 8), "LayerNorm.gamma": (8,), "LayerNorm.beta": (8,), "back.bias": (30,)}
    assert stored == shapes


FENCED = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2 *$", re.DOTALL | re.MULTILINE)
ASIDE = re.compile(r"<!--.*?-->", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
ITEM = re.compile(r"\s*(?:[-*]|\d\.) +")
END = re.compile(r"(?<=\S)[.!?][”’)*\"]*(?=\s|$)")
WORD = re.compile(r"\w[\w’'%.,/-]*")


def paragraphs(markdown: str) -> Iterator[str]:
    """Paragraphs, items of lists and cells of tables, each in one line; no headings and no code."""
    text = TAG.sub("", ASIDE.sub("", FENCED.sub("\n", markdown)))
    together: list[str] = []
    for line in [*text.splitlines(), ""]:
        code = line.startswith("    ") and not together
        dash = line.lstrip()[:1] in ("-", "*")  # a line of a paragraph may begin with “0. A row”
        item = ITEM.match(line) if dash or not together else None
        if not line.strip() or line.startswith(("#", ":::", "|")) or item or code:
            if together:
                yield " ".join(together)
            together = []
        if line.startswith("|"):
            yield from (cell.strip() for cell in line.strip("| ").split(" | "))
        elif line.strip() and not line.startswith(("#", ":::")) and not code:
            together.append(line[item.end() :].strip() if item else line.strip())


def sentences(markdown: str) -> Iterator[str]:
    """The sentences of a page, with code as one word and links as their text."""
    for block in paragraphs(markdown):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]+`", "Code", block)).replace("**", "")
        start = 0
        for end in END.finditer(plain):
            yield plain[start : end.end()].strip()
            start = end.end()
        if plain[start:].strip():
            yield plain[start:].strip()


def words(text: str) -> int:
    """Number of words; code counts as one, signs as none."""
    return len(WORD.findall(text))


GUIDES = [page for part in SETTINGS["nav"] for page in pages(part.get("Guides", []))]
ENGLISH = sorted(
    str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if not re.search(r"\b(ja|zh)\.md$", path.name)
)
LONGEST = 30
"""Words of a sentence."""
ABBREVIATIONS = re.compile(r"\b(et al|cf|e\.g|i\.e)\.")


def page(name: str) -> str:
    return ABBREVIATIONS.sub(r"\1", (DOCS / name).read_text(encoding="utf-8"))


def test_sentences_are_found() -> None:
    text = "# A title\n\nOne two. “Three four.” Five `six seven`?\n\n- Eight [nine](ten.md).\n\n| a | b c |\n"
    text += "\n```\nno.\n```\n    no\n"
    assert list(sentences(text)) == ["One two.", "“Three four.”", "Five Code?", "Eight nine.", "a", "b c"]
    assert [words(sentence) for sentence in sentences(text)] == [2, 2, 2, 2, 1, 2]
    assert list(paragraphs("a\nb\n\n1. c\n   d")) == ["a b", "c d"]


def test_guides_are_short_enough_to_be_read() -> None:
    """What is looked up stands in a page of the reference."""
    assert [guide for guide in GUIDES if sum(map(words, sentences(page(guide)))) > 1500] == []


def test_sentences_are_short_enough_to_be_read() -> None:
    assert [
        (name, sentence) for name in ENGLISH for sentence in sentences(page(name)) if words(sentence) > LONGEST
    ] == []


def arguments_of(node: ast.arguments) -> list[ast.arg]:
    """All arguments of a function, those that collect the rest among them."""
    collecting = [arg for arg in (node.vararg, node.kwarg) if arg is not None]
    return [*node.posonlyargs, *node.args, *node.kwonlyargs, *collecting]


def names(code: str) -> tuple[set[str], set[str]]:
    """(names that a block takes from elsewhere, names that it defines)."""
    nodes = list(ast.walk(ast.parse(code)))
    defined = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    defined |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    defined |= {arg.arg for node in nodes if isinstance(node, ast.arguments) for arg in arguments_of(node)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return used - defined - set(dir(builtins)), defined


def test_code_that_readers_see_runs_when_it_is_copied() -> None:
    """Shown blocks that the build runs use only what shown blocks above them define, and nothing of docs/tools."""
    for name in ENGLISH:
        known: set[str] = set()
        for indent, options, code in FENCE.findall((DOCS / name).read_text(encoding="utf-8")):
            if 'exec="on"' in options and "source=" not in options:
                continue
            lines = "".join(line.removeprefix(indent) for line in code.splitlines(keepends=True))
            assert not re.search(r"^\s*(from|import) (walk|hooks|blocks)\b", lines, re.MULTILINE), (name, lines)
            if "exec=" in options:
                used, defined = names(lines)
                assert used <= known, f"{name}: {used - known} come from a block that readers don't see"
                known |= defined


# Papers as scripts: each runs on a checkpoint, prints what came out beside what the paper found, and is short.


PAPERS = sorted((ROOT / "examples" / "papers").glob("*.py"))
READ: dict[str, Callable[[str], str]] = {
    "emma.txt": lambda text: "\n".join(line[:40] for line in text.splitlines()[:25]),
    "pud/en_pud-first500.conllu": lambda text: "\n\n".join(text.split("\n\n")[:60]) + "\n\n",
}
"""What the papers read, and as much of it as a whole script needs."""


@pytest.mark.slow
@pytest.mark.parametrize("script", PAPERS, ids=lambda path: path.stem)
@pytest.mark.parametrize("model", ["-", "without a masked LM"])
def test_a_paper_runs(
    script: Path,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On the bundled model, and on one of other sizes, without a masked LM. Each reads the beginning of the texts."""
    if model != "-":
        model = str(readable(tmp_path / model, "Bert", "Model").folder)
    file = tmp_path / "examples" / "papers" / script.name
    file.parent.mkdir(parents=True)
    file.write_bytes(script.read_bytes())
    for name, beginning in READ.items():
        text = (DOCS / "walkthroughs" / name).read_text(encoding="utf-8")
        part = tmp_path / "docs" / "walkthroughs" / name
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(beginning(text), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [str(file), model])
    runpy.run_path(str(file))  # in this process, which has imported what ten of their own would each import
    printed = capsys.readouterr()
    assert printed.err == ""
    assert re.search(r"\d", printed.out)
    assert "nan" not in printed.out


def test_each_says_what_the_paper_found_in_at_most_40_lines() -> None:
    assert len(PAPERS) >= 5
    for script in PAPERS:
        text = script.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 40, script.name
        assert re.match(rf'"""\w.* {script.stem[-4:]}, “', text), script.name
        assert "They " in text.split('"""')[1], script.name
