"""The architectures of transformers listed in docs/reference/architectures.md are those that capture supports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import transformers
from architectures import architectures, as_markdown

from families import FAMILIES
from headscope.live.readers import READERS
from headscope.live.refusals import REASONS

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "architectures.md"
BLOCK = re.compile(r"(<!-- architectures of transformers (\S+) -->\n).*(\n<!-- end -->)", re.DOTALL)


@pytest.mark.slow  # imports every architecture of transformers
def test_the_documented_architectures_are_those_of_the_installed_version(pytestconfig: pytest.Config) -> None:
    """`pytest --refresh-screens` rewrites the lists. They are compared if the documented version is installed."""
    installed = list(architectures())
    compared = {getattr(transformers, family.name).__module__.split(".")[2] for family in FAMILIES}
    lists = as_markdown(installed, compared)
    text = DOCS.read_text(encoding="utf-8")
    if pytestconfig.getoption("--refresh-screens"):
        block = f"<!-- architectures of transformers {transformers.__version__} -->\n{lists}\n<!-- end -->"
        text = BLOCK.sub(lambda _: block, text)
        DOCS.write_text(text, encoding="utf-8")
    kept = BLOCK.search(text)
    assert kept is not None
    if kept[2] == transformers.__version__:
        assert kept[0].split("\n", 1)[1].rsplit("\n", 1)[0] == lists
    by_name = {one.name: one for one in installed}
    assert all(by_name[name].reads or not by_name[name].alone for name in compared)
    classes = {name for one in installed for name in (*one.inside, *one.alone)}
    assert REASONS.keys() <= classes, "a reason for a class that no longer exists"
    assert {name.rpartition(".")[2] for name in READERS} <= classes | {"FalconAttention"}
