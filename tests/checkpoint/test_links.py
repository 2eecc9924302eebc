"""Links that lead nowhere, or to themselves, beside a checkpoint: what they stand for is missing, and not left out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import headscope as hs
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import CheckpointError, NotFoundError

NOWHERE = {"itself": "{name}", "a missing blob": "../../blobs/abc"}
TEXT = "The cat sat."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLED, tmp_path / "model"))


@pytest.mark.parametrize("target", NOWHERE)
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "modules.json"]
)
def test_a_file_that_is_a_link_to_nowhere_is_named(folder: Path, name: str, target: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(NOWHERE[target].format(name=name))
    with pytest.raises(CheckpointError, match=r"it is a link to '.*', which leads nowhere") as raised:
        hs.match(folder, TEXT, TEXT)
    assert str(raised.value.where).endswith(name)


@pytest.mark.parametrize("target", NOWHERE)
def test_a_model_that_is_a_link_to_nowhere(tmp_path: Path, target: str) -> None:
    (tmp_path / "model").symlink_to(NOWHERE[target].format(name="model"))
    with pytest.raises(NotFoundError, match=r"is a link to .*, which leads nowhere"):
        hs.open(tmp_path / "model")


def test_a_borrowed_tokenizer_that_is_a_link_to_nowhere(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "tokenizer.json").symlink_to("tokenizer.json")
    with pytest.raises(CheckpointError, match="leads nowhere"):
        hs.open(folder, tokenizer=tmp_path / "words").trace(TEXT)


def test_links_that_lead_to_files_are_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    for path in folder.iterdir():
        (tmp_path / "links" / path.name).symlink_to(Path("..") / "model" / path.name)
    assert hs.open(tmp_path / "links").trace(TEXT).tokens == hs.open(folder).trace(TEXT).tokens
