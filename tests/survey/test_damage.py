"""A finished survey is damaged in every way that a disk or a person can: it is noticed, named, and made whole again."""

from __future__ import annotations

import random
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from surveying import OPTIONS, contents

import headscope as hs
from headscope.atlas.result import Survey
from headscope.atlas.store import array_bytes, part_record, sealed_parquet
from headscope.atlas.survey_data import DamageWarning
from headscope.errors import InputError
from headscope.files import BLANK, MARK, fault, sealed

MANIFEST = "manifest.json"


@pytest.fixture(scope="module")
def other(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another survey of the same documents: its windows are shorter."""
    out = tmp_path_factory.mktemp("other") / "out"
    return hs.survey("-", corpus, out=out, head_distances=2, **{**OPTIONS, "length": 30}).folder


@pytest.fixture
def copy(whole: Survey, tmp_path: Path) -> Path:
    return shutil.copytree(whole.folder, tmp_path / "out")


def resume(folder: Path, corpus: Path) -> list[str]:
    """Run the survey again; what it says of damage."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DamageWarning)
        hs.survey("-", corpus, out=folder, head_distances=2, **OPTIONS)
    return [str(one.message) for one in caught if one.category is DamageWarning]


def opened_wrongly(folder: Path) -> str:
    """The error of opening a damaged survey."""
    with pytest.raises(InputError) as caught:
        Survey(folder)
    assert "run the same survey command again" in str(caught.value)
    return str(caught.value)


def is_whole(folder: Path, whole: Survey) -> bool:
    """Return True if a survey's files, except those set aside, equal those of an undamaged survey."""
    return {name: data for name, data in contents(folder).items() if not name.startswith("damaged/")} == contents(
        whole.folder
    )


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_every_single_flipped_bit_is_noticed_and_named(whole, copy):
    """200 bits over every file that opening a survey reads, and those of the matrices."""
    chosen = random.Random(12)
    files = contents(copy)
    for turn in range(200):
        name = sorted(files)[turn % len(files)]
        bit = chosen.randrange(8 * len(files[name]))
        (copy / name).write_bytes(flipped(files[name], bit))
        if name.startswith("similarity/"):
            assert fault((copy / name).read_bytes()) is not None, (name, bit)
            Survey(copy)  # a matrix of one window is only read when similarity.parquet is made
        else:
            assert name in opened_wrongly(copy), (name, bit)
        (copy / name).write_bytes(files[name])
    assert Survey(copy).manifest == whole.manifest


def test_flipped_bits_in_every_file_are_repaired(whole, copy, corpus):
    """One bit in each file at once, twice: what comes of it is the undamaged survey, byte for byte."""
    chosen = random.Random(8)
    kept = []
    for spared in (None, MANIFEST):
        files = {name: data for name, data in contents(whole.folder).items() if name != spared}
        for name, data in files.items():
            kept.append(flipped(data, chosen.randrange(8 * len(data))))
            (copy / name).write_bytes(kept[-1])
        said = resume(copy, corpus)
        # With no part left whole, nothing says that a damaged manifest was this survey's, so all of it is done anew.
        known = [name for name in files if spared or name.startswith(("parts/", "similarity/")) or name == MANIFEST]
        assert len(said) == len(known)
        assert all(any(str(copy / name) in line for line in said) for name in known)
        assert is_whole(copy, whole)
    assert {path.read_bytes() for path in (copy / "damaged").iterdir()} <= set(kept)


@pytest.mark.parametrize("how", ["cut", "emptied", "deleted", "a folder", "of another survey"])
def test_all_files_but_the_manifest(whole, copy, corpus, other, how):
    """Opening names each one; running the survey again mends all of them at once."""

    def damage(path: Path, data: bytes) -> None:
        path.unlink()
        if how == "cut":
            path.write_bytes(data[: len(data) * 2 // 3])
        elif how == "emptied":
            path.write_bytes(b"")
        elif how == "a folder":
            path.mkdir()
        elif how == "of another survey":
            shutil.copy(other / path.relative_to(copy), path)

    names = [name for name in contents(whole.folder) if name != MANIFEST]
    for name in names:
        path = copy / name
        data = path.read_bytes()
        damage(path, data)
        if not name.startswith("similarity/"):
            assert name in opened_wrongly(copy)
        if path.is_dir():
            path.rmdir()
        path.write_bytes(data)
    for name in names:
        damage(copy / name, (copy / name).read_bytes())
    said = resume(copy, corpus)
    assert is_whole(copy, whole)
    assert len(said) == (0 if how == "deleted" else len(names))
    assert all(any(str(copy / name) in line for line in said) for name in names if how != "deleted")


def test_the_manifest_of_another_survey(copy, corpus, other):
    """It is whole: that is no damage."""
    shutil.copy(other / MANIFEST, copy / MANIFEST)
    assert "do not match the hash in manifest.json" in opened_wrongly(copy)
    with pytest.raises(InputError, match=r"the folder holds a survey with other settings: length was 30, is 32"):
        resume(copy, corpus)


def test_parts_that_changed_places(whole, copy, corpus):
    """Each is whole, and of this survey."""
    one, two = (copy / f"parts/part-0000{index}.parquet" for index in (0, 1))
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert "parts/part-00000.parquet: its bytes do not match" in opened_wrongly(copy)
    (copy / MANIFEST).unlink()
    gone, *said = resume(copy, corpus)
    assert "manifest.json is missing: it is written again from the parts" in gone
    assert ["it is part 1, not part 0" in said[0], "it is part 0, not part 1" in said[1], len(said)] == [True, True, 2]
    assert is_whole(copy, whole)


@pytest.mark.parametrize(
    "manifest", [b"", b"[" * 100_000, b"{}", b"\xff\x00", b'{"format": "headscope survey 1"}', None]
)
def test_a_manifest_that_says_nothing_loses_nothing(whole, copy, corpus, manifest):
    """With all parts there, it is made again from them, and no part is."""
    (copy / MANIFEST).unlink()
    if manifest is not None:
        (copy / MANIFEST).write_bytes(manifest)
    assert MANIFEST in opened_wrongly(copy)
    inodes = {path: path.stat().st_ino for path in (copy / "parts").iterdir()}
    (line,) = resume(copy, corpus)
    assert str(copy / MANIFEST) in line
    assert is_whole(copy, whole)
    assert inodes == {path: path.stat().st_ino for path in (copy / "parts").iterdir()}


def test_without_a_manifest_the_parts_say_whose_they_are(copy, corpus):
    (copy / MANIFEST).write_bytes(b"")
    before = contents(copy)
    with pytest.raises(InputError, match=r"the parts are of a survey with other settings: length was 32, is 16"):
        hs.survey("-", corpus, out=copy, head_distances=2, **{**OPTIONS, "length": 16})
    assert contents(copy) == before


def test_a_damaged_manifest_among_other_things_is_left_alone(tmp_path, corpus):
    (tmp_path / MANIFEST).write_bytes(b"half a man")
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(InputError, match=r"the manifest can't be read"):
        hs.survey("-", corpus, out=tmp_path, **OPTIONS)
    assert (tmp_path / MANIFEST).read_bytes() == b"half a man"


def test_a_part_too_many(whole, copy, corpus, other):
    shutil.copy(other / "parts/part-00000.parquet", copy / "parts/part-00099.parquet")
    (line,) = resume(copy, corpus)
    assert "part-00099.parquet: it belongs to another survey" in line
    assert is_whole(copy, whole)
    (copy / "parts" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"parts that don't come from this corpus: notes\.txt"):
        resume(copy, corpus)


def test_matrices_that_changed_places(whole, copy, corpus):
    one, two = (copy / f"similarity/window-0000{rank}.npy" for rank in (0, 1))
    assert np.load(one).shape == (16, 16)
    one.write_bytes(two.read_bytes())
    (line,) = resume(copy, corpus)
    assert "window-00000.npy: its bytes do not match the hash in manifest.json" in line
    assert is_whole(copy, whole)


PART, MATRIX = "parts/part-00000.parquet", "similarity/window-00000.npy"


def rows_of(data: bytes) -> pyarrow.Table:
    return parquet.read_table(pyarrow.BufferReader(data))


STRANGE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "no table": (PART, lambda _: sealed(b"a text " + BLANK)),
    "no record": (PART, lambda data: sealed_parquet(rows_of(data))),
    "a record of no survey": (PART, lambda data: sealed_parquet(rows_of(data), {})),
    "a record without counts": (
        PART,
        lambda data: sealed_parquet(rows_of(data), {"run": part_record(data)["run"], "survey": {}, "part": 0}),
    ),
    "a negative count": (PART, lambda data: sealed_parquet(rows_of(data), {**part_record(data), "windows": -1})),
    "a column less": (PART, lambda data: sealed_parquet(rows_of(data).drop_columns("same"), part_record(data))),
    "no array": (MATRIX, lambda _: sealed(b"a text " + BLANK)),
    "an array of objects": (MATRIX, lambda data: sealed(re.sub(b"'<f[48]'", b"'|O' ", data).replace(*seal_of(data)))),
    "a matrix of no survey": (MATRIX, lambda _: array_bytes(np.zeros((16, 16)), {})),
}
"""A file of a survey, and other contents for it, all with the right hash."""


def seal_of(data: bytes) -> tuple[bytes, bytes]:
    """A file's mark with its hash, and without."""
    at = data.rindex(MARK)
    return data[at : at + len(BLANK)], BLANK


@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize("case", STRANGE)
def test_what_a_stranger_sealed_is_made_again(whole, copy, corpus, case, manifest):
    name, change = STRANGE[case]
    (copy / name).write_bytes(change((copy / name).read_bytes()))
    assert fault((copy / name).read_bytes()) is None
    if not manifest:
        (copy / MANIFEST).unlink()
    lines = resume(copy, corpus)
    assert str(copy / name) in lines[-1]
    assert is_whole(copy, whole)


def test_a_document_named_like_a_seal_is_no_seal(tmp_path):
    """Names stand in a part before and after its rows; the seal is found all the same."""
    name = BLANK.decode()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / name).write_text("A text.")
    (tmp_path / "texts" / f"{name}.").write_text("")
    found = hs.survey("-", tmp_path / "texts", out=tmp_path / "out", **OPTIONS)
    data = (tmp_path / "out/parts/part-00000.parquet").read_bytes()
    assert fault(data) is None
    assert BLANK in data
    assert part_record(data)["refused"][0]["document"] == f"{name}."
    assert set(found.windows()["document"].to_pylist()) == {name}
    assert fault((tmp_path / "out" / MANIFEST).read_bytes()) is None
    assert [one["name"] for one in Survey(tmp_path / "out").manifest["corpus"]["files"]] == [name, f"{name}."]


def test_a_seal_covers_every_bit():
    data = sealed(b"before " + BLANK + b" after")
    assert fault(data) is None
    assert all(fault(flipped(data, bit)) for bit in range(8 * len(data)))
    assert all(fault(data[:end]) for end in range(len(data)))
