"""What an error advises is true where headscope is installed."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from headscope.errors import install


class Installed:
    """A distribution with this direct_url.json, by which pip remembers where a package came from (PEP 610)."""

    def __init__(self, origin: Any) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.origin if self.origin is None or isinstance(self.origin, str) else json.dumps(self.origin)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, "pip install 'headscope[view]'"),
        ({"url": "{here}", "dir_info": {"editable": True}}, "pip install -e '{path}[view]'"),
        ({"url": "{here}", "dir_info": {}}, "pip install '{path}[view]'"),
        ({"url": "{here}/gone.whl", "archive_info": {}}, "pip install 'headscope[view]'"),
        ({"url": "https://example.org/headscope.git", "vcs_info": {}}, "pip install 'headscope[view]'"),
        ("not JSON", "pip install 'headscope[view]'"),
        ("[]", "pip install 'headscope[view]'"),
    ],
)
def test_extras_are_installed_from_where_headscope_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: Any, expected: str
) -> None:
    folder = tmp_path / "a clone"
    folder.mkdir()
    if isinstance(origin, dict):
        origin["url"] = origin["url"].replace("{here}", folder.as_uri())
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(origin))
    assert install("view", "view") == expected.replace("{path}", str(folder))
