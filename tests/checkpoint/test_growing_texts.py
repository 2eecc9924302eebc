"""Rules of a tokenizer.json that double a text each are refused before any text is read; usual rules are not."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

import headscope as hs
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import UnsupportedError

LETTERS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def charsmap(content: bytes) -> dict[str, Any]:
    """A table of sentencepiece whose only replacement is this long."""
    table = (4).to_bytes(4, "little") + bytes(4) + content + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def saved(folder: Path, normaliser: Any, splitter: Any = None) -> Path:
    shutil.copytree(BUNDLED, folder, dirs_exist_ok=True)
    file = folder / "tokenizer.json"
    stated = json.loads(file.read_text())
    stated["normalizer"] = normaliser
    stated["pre_tokenizer"] = splitter or stated["pre_tokenizer"]
    # An added token is normalised when the file is read, before any text.
    stated["added_tokens"] += [{**stated["added_tokens"][0], "id": 9, "content": "aa", "normalized": True}]
    file.write_text(json.dumps(stated))
    return folder


@pytest.mark.parametrize(
    "rules",
    [
        [replace("aa", String="a")] * 24,
        [{"type": "Sequence", "normalizers": [replace("aa", String="a")] * 12}] * 2,
        [replace("a", Regex="(?=a)")] * 24,
        [replace("a", String="")] * 24,
        [replace("aaa", Regex="a")] * 24,
        [LETTERS] * 24,
        [charsmap(b"x" * 100)] * 4,
        [replace("b" * 300, String="a")],
    ],
    ids=["literal", "nested", "between letters", "everywhere", "pattern", "bytes", "charsmap", "once"],
)
def test_rules_that_grow_without_bound_are_refused(rules: list[dict[str, Any]], tmp_path: Path) -> None:
    folder = saved(tmp_path, {"type": "Sequence", "normalizers": rules})
    with pytest.raises(UnsupportedError, match="rules that make a text longer may make more than 256"):
        hs.open(folder).trace("a cat")
    with pytest.raises(UnsupportedError, match="may make more than 256"):
        hs.open(folder).trace(words=["a", "cat"])
    assert hs.open(folder).trace(ids=[2, 9, 3]).ids == (2, 9, 3)


def test_splitters_that_grow_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, None, {"type": "Sequence", "pretokenizers": [LETTERS] * 24})
    with pytest.raises(UnsupportedError, match="may make more than 256"):
        hs.open(folder).trace("é")


def test_many_rules_that_do_not_grow_are_run(tmp_path: Path) -> None:
    usual = [
        {"type": "NFKC"},
        *[replace(" ", Regex=" {2,}")] * 10,
        *[replace("a", String="á")] * 30,
        replace("''", String='"'),
        replace(" , ", Regex="[,;]"),
        {"type": "Lowercase"},
    ]
    folder = saved(tmp_path, {"type": "Sequence", "normalizers": usual})
    text = "A cat, á  dog"
    expected = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    assert list(hs.open(folder).trace(text).ids) == expected
