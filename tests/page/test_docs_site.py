"""The documentation as its theme shows it: some of its pages, built, without anything that axe-core finds wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looking import DRAWN, Watched, inaccessible

pytest.importorskip("material", reason="the theme is not installed: pip install -e '.[docs]' (.ci/run does)")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = ("zh", "statistics", "questions/head", "reference/trace")
"""The strip and a language; wide tables; code, a console and live pages; signatures."""
BUILD = """
import sys
from mkdocs.commands.build import build
from mkdocs.config import load_config
config, site, *pages = sys.argv[1:]
others = "\\n".join(["*.md", "tools/", *map("!/{}".format, pages)])
build(load_config(config, site_dir=site, nav=pages, exclude_docs=others))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    pages = [f"{page}.md" for page in PAGES]
    subprocess.run([sys.executable, "-c", BUILD, str(ROOT / "mkdocs.yml"), str(folder), *pages], check=True)
    return folder


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 1440), ("light", 390)])
def test_axe_finds_nothing(site: Path, watch: Callable[..., Watched], scheme: Any, width: int) -> None:
    page, complaints = watch(quiet=False).page, []
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        page.evaluate(DRAWN)
        complaints += [f"{name}: {complaint}" for complaint in inaccessible(page)]
    assert complaints == []
