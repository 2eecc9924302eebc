"""A finished survey is damaged in every way that a disk or a person can: it is noticed, named, and made whole again."""

from __future__ import annotations

import random
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from surveying import OPTIONS, contents

import headscope as hs
from headscope.atlas.result import Survey
from headscope.atlas.store import part_record
from headscope.atlas.survey_data import DamageWarning
from headscope.errors import InputError
from headscope.files import BLANK, fault, sealed
from products import in_turn

MANIFEST, PART, MATRIX = "manifest.json", "parts/part-00000.parquet", "similarity/window-00000.npy"


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
    """Return True if a survey's files equal those of an undamaged survey."""
    return contents(folder) == contents(whole.folder)


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
    """One bit in each file at once, twice, one file spared: what comes of it is the undamaged survey, byte for byte."""
    chosen = random.Random(8)
    for spared in (MANIFEST, PART):
        files = {name: data for name, data in contents(whole.folder).items() if name != spared}
        for name, data in files.items():
            (copy / name).write_bytes(flipped(data, chosen.randrange(8 * len(data))))
        said = resume(copy, corpus)
        assert len(said) == len(files)
        assert all(any(str(copy / name) in line for line in said) for name in files)
        assert is_whole(copy, whole)


def test_nothing_is_touched_where_no_file_says_whose_it_is(whole, copy, corpus):
    """The manifest and every part are damaged: they may be another survey's."""
    for name, data in contents(whole.folder).items():
        if name == MANIFEST or name.startswith("parts/"):
            (copy / name).write_bytes(flipped(data, 99))
    before = contents(copy)
    with pytest.raises(InputError, match="name an empty folder"):
        resume(copy, corpus)
    assert contents(copy) == before


@pytest.mark.parametrize("how", ["cut", "emptied", "deleted", "a folder"])
def test_all_files_but_the_manifest(whole, copy, corpus, how):
    """Opening names each one; running the survey again mends all of them at once."""

    def damage(path: Path, data: bytes) -> None:
        path.unlink()
        if how == "cut":
            path.write_bytes(data[: len(data) * 2 // 3])
        elif how == "emptied":
            path.write_bytes(b"")
        elif how == "a folder":
            path.mkdir()

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


@pytest.mark.parametrize(
    ("name", "manifest"),
    in_turn((PART, MATRIX, "aggregates.json", "similarity.parquet"), ("whole", "missing", "damaged")),
)
def test_a_file_of_another_survey_is_never_touched(whole, copy, corpus, other, name, manifest):
    """A file of each kind, whole, of a survey with another length: opening names it, and so does a refusal."""
    before = (copy / name).read_bytes()
    shutil.copy(other / name, copy / name)
    if not name.startswith("similarity/"):
        assert f"{name}: it is of another survey" in opened_wrongly(copy)
    if manifest == "missing":
        (copy / MANIFEST).unlink()
    elif manifest == "damaged":
        (copy / MANIFEST).write_bytes((copy / MANIFEST).read_bytes()[:-9])
    with pytest.raises(InputError, match=f"{re.escape(name)}: it is of another survey"):
        resume(copy, corpus)
    assert (copy / name).read_bytes() == (other / name).read_bytes()
    (copy / name).write_bytes(before)
    resume(copy, corpus)
    assert is_whole(copy, whole)


def test_a_file_of_other_texts_is_never_touched(tmp_path):
    """A survey with the same settings of texts of the same lengths, which only the parts know."""
    options = OPTIONS | {"labels": True}
    one, other = (hs.survey("-", [text], out=tmp_path / text, **options).folder for text in ("a cat sat", "a dog sat"))
    (other / "labels.parquet").unlink()
    shutil.copy(one / "labels.parquet", other / "labels.parquet")
    with pytest.raises(InputError, match=r"labels\.parquet: it is of another survey"):
        Survey(other)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamageWarning)
            with pytest.raises(InputError, match=r"labels\.parquet: it is of another survey"):
                hs.survey("-", ["a dog sat"], out=other, **options)
        assert (one / "labels.parquet").read_bytes() == (other / "labels.parquet").read_bytes()
        (other / MANIFEST).unlink()


def test_the_manifest_of_another_survey(copy, corpus, other):
    """It is whole: that is no damage."""
    shutil.copy(other / MANIFEST, copy / MANIFEST)
    assert "it is of another survey" in opened_wrongly(copy)
    with pytest.raises(InputError, match=r"the folder holds a survey with other settings: length was 30, is 32"):
        resume(copy, corpus)


def test_files_that_changed_places(whole, copy, corpus):
    """Each is whole, and of this survey."""
    one, two = (copy / f"similarity/window-0000{rank}.npy" for rank in (0, 1))
    assert np.load(one).shape == (16, 16)
    one.write_bytes(two.read_bytes())
    (line,) = resume(copy, corpus)
    assert "window-00000.npy: it is similarity/window-00001.npy of this survey" in line
    assert is_whole(copy, whole)
    one, two = (copy / f"parts/part-0000{index}.parquet" for index in (0, 1))
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert "parts/part-00000.parquet: it is parts/part-00001.parquet of this survey" in opened_wrongly(copy)
    (copy / MANIFEST).unlink()
    gone, *said = resume(copy, corpus)
    assert "manifest.json: it is missing; it is made again" in gone
    assert [f"it is parts/part-0000{1 - at}.parquet" in line for at, line in enumerate(said)] == [True, True]
    assert is_whole(copy, whole)


@pytest.mark.parametrize("manifest", [b"", b"[" * 100_000, b"\xff\x00", None])
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


@pytest.mark.parametrize("manifest", [b"{}", b'{"format": "headscope survey 1"}'])
def test_the_manifest_of_something_else_is_left_alone(copy, corpus, manifest):
    """Even among the parts of this survey."""
    (copy / MANIFEST).write_bytes(manifest)
    assert MANIFEST in opened_wrongly(copy)
    before = contents(copy)
    with pytest.raises(InputError, match="expected a manifest with format"):
        resume(copy, corpus)
    assert contents(copy) == before


@pytest.mark.parametrize("manifest", [b"", None])
def test_without_a_manifest_the_parts_say_whose_they_are(copy, corpus, manifest):
    (copy / MANIFEST).unlink()
    if manifest is not None:
        (copy / MANIFEST).write_bytes(manifest)
    before = contents(copy)
    with pytest.raises(InputError, match=r"the manifest can't be read|the folder holds other files: aggregates"):
        hs.survey("-", corpus, out=copy, head_distances=2, **{**OPTIONS, "length": 16})
    assert contents(copy) == before


def test_other_things_are_left_alone_with_a_damaged_manifest_among_them_or_none(tmp_path, corpus):
    files = {"thesis.tex": b"all of it", MANIFEST: b"half a man"}
    for (name, data), message in zip(files.items(), (r"holds other files: thesis\.tex", "can't be read"), strict=True):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=message):
            hs.survey("-", corpus, out=tmp_path, **OPTIONS)
    assert contents(tmp_path) == files


def test_a_part_too_many(whole, copy, corpus, other):
    last = copy / "parts/part-00099.parquet"
    last.write_bytes((copy / PART).read_bytes()[:-9])
    (line,) = resume(copy, corpus)
    assert "part-00099.parquet: its bytes do not match" in line
    assert is_whole(copy, whole)
    shutil.copy(other / PART, last)
    with pytest.raises(InputError, match=r"part-00099\.parquet: it is of another survey"):
        resume(copy, corpus)
    assert last.read_bytes() == (other / PART).read_bytes()
    last.unlink()
    (copy / "parts" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"parts that don't come from this corpus: notes\.txt"):
        resume(copy, corpus)


def test_what_is_sealed_without_a_label_is_left_alone(copy, corpus):
    data = sealed(b"a text " + BLANK)
    for name in (PART, MATRIX):
        (copy / name).write_bytes(data)
        with pytest.raises(InputError, match="it is of another survey"):
            resume(copy, corpus)
        assert (copy / name).read_bytes() == data
        (copy / name).unlink()


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
