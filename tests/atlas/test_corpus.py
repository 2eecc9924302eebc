"""CORPUS, tested with files written by hand, by csv, and by pyarrow; and the reader of treebanks."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import struct
from collections.abc import Iterable
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import headscope as hs
from headscope.atlas.corpus import Corpus, open_corpus
from headscope.atlas.documents import Document, Refused, Sentence, in_pieces, parts, read_conllu
from headscope.atlas.survey_settings import SurveySettings
from headscope.errors import InputError
from peak import Peak

TEXTS = ["One.", "Zwei, bitte.", "三。", 'four "quoted", with a comma', "five\nlines\n\nof text"]


def read(corpus: Corpus, field: str = "text", most: int = 1000) -> list[Document | Refused]:
    return list(corpus.documents(field, most))


def texts(corpus: Corpus, field: str = "text") -> dict[str, str]:
    result = read(corpus, field)
    assert all(isinstance(one, Document) for one in result), result
    return {one.name: one.text for one in result if isinstance(one, Document)}


def sorted_out(corpus: Corpus, field: str = "text", most: int = 1000) -> tuple[list[Document], list[Refused]]:
    """The documents that are read, and those that are refused."""
    result = read(corpus, field, most)
    good, bad = ([one for one in result if isinstance(one, kind)] for kind in (Document, Refused))
    return good, bad


def refusals(corpus: Corpus, field: str = "text", most: int = 1000) -> dict[str, str]:
    return {one.name: one.reason for one in sorted_out(corpus, field, most)[1]}


def test_a_folder_is_read_by_name_and_in_depth(tmp_path):
    for name in ("b.txt", "a/2.md", "a/1", ".hidden", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"this is {name}")
    corpus = open_corpus(tmp_path)
    assert list(texts(corpus).items()) == [(name, f"this is {name}") for name in ("a/1", "a/2.md", "b.txt")]
    assert (corpus.name, corpus.kind) == (tmp_path.name, "text")
    assert corpus.weight == sum(len(f"this is {name}") for name in ("a/1", "a/2.md", "b.txt"))


def test_a_pattern(tmp_path):
    for name in ("x/1.txt", "x/2.txt", "x/3.md", "y/1.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert list(texts(open_corpus(f"{tmp_path}/x/*.txt"))) == ["1.txt", "2.txt"]
    assert list(texts(open_corpus(f"{tmp_path}/**/1.txt"))) == ["x/1.txt", "y/1.txt"]
    with pytest.raises(InputError, match="no file matches this pattern"):
        open_corpus(f"{tmp_path}/*.pdf")
    with pytest.raises(InputError, match="no such file or folder"):
        open_corpus(tmp_path / "z")
    (tmp_path / "what[1]?.txt").write_text("it is there")
    assert texts(open_corpus(tmp_path / "what[1]?.txt")) == {"what[1]?.txt": "it is there"}


def test_json_lines(tmp_path):
    file = tmp_path / "a.jsonl"
    lines = [json.dumps({"id": at, "text": text}) for at, text in enumerate(TEXTS)]
    file.write_text("\n".join(["\ufeff" + lines[0], "", *lines[1:]]), encoding="utf-8")
    names = ["a.jsonl#1", *(f"a.jsonl#{number}" for number in range(3, 7))]
    assert texts(open_corpus(file)) == dict(zip(names, TEXTS, strict=True))
    assert sum(one.weight for one in read(open_corpus(file))) == file.stat().st_size - 1


def test_bad_json_lines_are_refused_one_by_one(tmp_path):
    file = tmp_path / "a.jsonl"
    written = (b"good", b"\xff", b"", b"x" * 20_000, b"y" * 1001, b"\\ud800", b"good too")
    lines = [b'{"text": "%b"}' % text for text in written]
    lines[1:1] = [b"[1]", b'{"other": 1}', b'{"text": 5}', b'{"text": "half']
    file.write_bytes(b"\n".join(lines))
    assert [one.name for one in read(open_corpus(file)) if isinstance(one, Document)] == ["a.jsonl#1", "a.jsonl#11"]
    reasons = ["no field", "no field", "no text", "not JSON", "not UTF-8", "empty", "too long", "too long", "not UTF-8"]
    assert refusals(open_corpus(file)) == {f"a.jsonl#{at}": reason for at, reason in enumerate(reasons, 2)}


@pytest.mark.parametrize(("ending", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_csv(tmp_path, ending, delimiter):
    file = tmp_path / f"a{ending}"
    sink = io.StringIO()
    writer = csv.writer(sink, delimiter=delimiter)
    writer.writerow(["id", "body"])
    writer.writerows(enumerate(TEXTS))
    file.write_text(sink.getvalue(), encoding="utf-8", newline="")
    assert texts(open_corpus(file), "body") == {f"a{ending}#{at + 1}": text for at, text in enumerate(TEXTS)}
    file.write_text(f"id{delimiter}body\n" + f"1{delimiter}三 é\n" * 9, encoding="utf-8", newline="")
    weights = [one.weight for one in read(open_corpus(file), "body")]
    assert sum(weights) == file.stat().st_size - len("id,body\n")


def test_bad_csv_rows_are_refused_and_the_module_is_left_as_it_was(tmp_path):
    before = csv.field_size_limit()
    file = tmp_path / "a.csv"
    file.write_bytes(b"text,id\ngood,1\n\xff,2\n,3\n\nlong" + b"g" * 1000 + b",4\ngood too,5\n")
    result = read(open_corpus(file))
    assert [one.name for one in result if isinstance(one, Document)] == ["a.csv#1", "a.csv#5"]
    assert refusals(open_corpus(file)) == {"a.csv#2": "not UTF-8", "a.csv#3": "empty", "a.csv#4": "too long"}
    assert refusals(open_corpus(file), "body") == {"a.csv": "no field"}
    file.write_bytes(b'text\ngood\n"' + b"never closed\n" * 1000)
    assert refusals(open_corpus(file)) == {"a.csv#2": "not CSV"}
    assert csv.field_size_limit() == before


def test_parquet(tmp_path):
    file = tmp_path / "a.parquet"
    table = pyarrow.table({"id": range(6), "text": [*TEXTS, None]})
    parquet.write_table(table, file, row_group_size=2)
    result = read(open_corpus(file))
    assert [one.text for one in result if isinstance(one, Document)] == TEXTS
    assert [one.name for one in result] == [f"a.parquet#{number}" for number in range(1, 7)]
    assert refusals(open_corpus(file)) == {"a.parquet#6": "no text"}
    assert refusals(open_corpus(file), "body") == {"a.parquet": "no field"}
    file.write_bytes(file.read_bytes()[:-100])
    assert refusals(open_corpus(file)) == {"a.parquet": "not Parquet"}


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_parquet_text_that_is_not_utf_8_ends_the_file(dictionary, tmp_path):
    """Arrow checks a batch as a whole; nothing that it calls a text is decoded before."""
    file, rows = tmp_path / "a.parquet", [b"good"] * 256 + [b"good too", b"caf\xe9", b"good as well"]
    table = pyarrow.table({"text": pyarrow.array(rows, pyarrow.binary()).view(pyarrow.string())})
    parquet.write_table(table, file, use_dictionary=dictionary)
    assert refusals(open_corpus(file)) == {"a.parquet#257": "damaged"}
    assert sum(isinstance(one, Document) for one in read(open_corpus(file))) == 256


def test_a_row_that_python_cannot_hold_is_named(tmp_path):
    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": pyarrow.array([0, 2**30], pyarrow.date32())}), file)
    assert refusals(open_corpus(file)) == {"a.parquet#1": "no text", "a.parquet#2": "damaged"}


@pytest.mark.parametrize("limit", [10**12, 1 << 40])
def test_no_room_is_made_for_what_is_not_there(tmp_path, limit):
    """As much memory as the limit allows would be more than there is."""
    for name, content in (("a.txt", "one"), ("b.csv", "text\none\n"), ("c.jsonl", '{"text": "one"}')):
        (tmp_path / name).write_text(content)
        assert [one.text for one in read(open_corpus(tmp_path / name), most=limit)] == ["one"]
    with (tmp_path / "a.txt").open("rb") as stream:
        assert [one.text for one in read(open_corpus("-", stream), most=limit)] == ["one"]
    with pytest.raises(InputError, match=f"at most {1 << 40}"):
        SurveySettings(max_document=(1 << 40) + 1)


def hugging_face_dataset(folder: Path, shards: Iterable[list[str]]) -> None:
    """A folder as written by datasets.Dataset.save_to_disk: Arrow streams, state.json, dataset_info.json."""
    folder.mkdir()
    names = []
    for number, shard in enumerate(shards):
        table = pyarrow.table({"text": shard})
        names.append(f"data-{number:05}-of-00002.arrow")
        with pyarrow.OSFile(str(folder / names[-1]), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "1", "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def test_a_dataset_saved_to_disk(tmp_path):
    hugging_face_dataset(tmp_path / "train", [TEXTS[:3], TEXTS[3:]])
    corpus = open_corpus(tmp_path / "train")
    assert corpus.kind == "hf"
    assert list(texts(corpus).values()) == TEXTS
    assert list(texts(corpus))[3] == "data-00001-of-00002.arrow#1"
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(InputError, match="has the splits train"):
        open_corpus(tmp_path)
    (tmp_path / "train/data-00001-of-00002.arrow").unlink()
    with pytest.raises(InputError, match="lists missing files: data-00001"):
        open_corpus(tmp_path / "train")


def test_standard_input_is_one_document(monkeypatch):
    corpus = open_corpus("-", io.BytesIO(b"Zwei Zeilen\nwarten"))
    assert texts(corpus) == {"-": "Zwei Zeilen\nwarten"}
    assert refusals(open_corpus("-", io.BytesIO(b"x" * 5000))) == {"-": "too long"}
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        open_corpus("-")


def test_texts_and_records_in_memory():
    """The rows of a dataset, too: its iterator has them as mappings."""
    corpus = open_corpus(["a", "", "b"])
    assert [one.name for one in read(corpus)] == ["0", "1", "2"]
    for column in (pyarrow.array(["a", "", "b"]), pyarrow.chunked_array([["a"], ["", "b"]])):
        assert [*read(open_corpus(column))] == [*read(corpus)]
    corpus = open_corpus([{"text": "a", "stars": 3}, {"line": "b"}, "c", {"text": None}, {0: "d"}])
    assert [one.text for one in read(corpus) if isinstance(one, Document)] == ["a", "c"]
    assert refusals(corpus) == {"1": "no field", "3": "no text", "4": "no field"}
    assert refusals(corpus, "line") == {"0": "no field", "3": "no field", "4": "no field"}


def test_bad_files_are_refused_and_the_others_read(tmp_path):
    (tmp_path / "a.txt").write_text("good")
    (tmp_path / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "c.txt").write_bytes(b"")
    (tmp_path / "d.txt").write_text(" \n ")
    (tmp_path / "e.txt").write_text("x" * 1001)
    (tmp_path / "f.txt").write_text("x" * 5001)
    (tmp_path / "g.txt").write_bytes("\ufeffmarked".encode())
    (tmp_path / "h.txt.gz").write_bytes(gzip.compress(b"text"))
    corpus = open_corpus(tmp_path)
    assert corpus.kind == "text"
    assert {one.name: one.text for one in sorted_out(corpus)[0]} == {"a.txt": "good", "g.txt": "marked"}
    assert refusals(corpus) == {
        "b.png": "not UTF-8",
        "c.txt": "empty",
        "d.txt": "empty",
        "e.txt": "too long",
        "f.txt": "too long",
        "h.txt.gz": "packed",
    }


@given(st.lists(st.text(max_size=30), max_size=30), st.integers(1, 500))
def test_parts_hold_every_document_once_and_in_order(result, size):
    corpus = open_corpus(result)
    cut = list(parts(corpus.documents("text", 20), size))
    assert [part.index for part in cut] == list(range(len(cut)))
    good, bad = sorted_out(corpus, most=20)
    assert [one for part in cut for one in part.documents] == good
    assert [one for part in cut for one in part.refused] == bad
    assert [part.texts for part in cut] == [part.texts for part in parts(corpus.documents("text", 20), size)]


def test_a_part_knows_what_it_was_made_from():
    def digests(result: list[str]) -> list[str]:
        return [part.texts for part in parts(open_corpus(result).documents("text", 20), 1000)]

    assert digests(["ab", "c"]) != digests(["a", "bc"])
    assert digests(["ab", "c"]) != digests(["ab", "d"])
    assert digests(["ab", ""]) != digests(["ab"])


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "txt"])
def test_memory_is_flat_over_the_length_of_the_corpus(tmp_path, kind):
    """2 MB and 8 MB of documents are read with the same peak, far below either."""

    def peak(megabytes: int) -> int:
        text, count = "word " * 400, megabytes * 500
        folder = tmp_path / f"{megabytes}"
        folder.mkdir()
        if kind == "txt":
            for at in range(count):
                (folder / f"{at}.txt").write_text(text)
        elif kind == "parquet":
            with parquet.ParquetWriter(folder / "a.parquet", pyarrow.schema([("text", pyarrow.string())])) as file:
                for _ in range(count // 100):
                    file.write_table(pyarrow.table({"text": [text] * 100}))
        else:
            line = json.dumps({"text": text}) if kind == "jsonl" else text
            head = "" if kind == "jsonl" else "text\n"
            (folder / f"a.{kind}").write_text(head + f"{line}\n" * count)
        corpus = open_corpus(folder)
        with Peak() as held:
            assert sum(len(part.documents) for part in parts(corpus.documents("text", 10_000), 100_000)) == count
        return held.bytes

    peak(1)
    small, large = peak(2), peak(8)
    files = 8 * 500 * 600 if kind == "txt" else 0  # a folder's names and sizes are held
    assert large < small + 150_000 + files
    assert large < 2_500_000 + files


GOOD = [f"row {number}" for number in range(1, 9)]


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("rest", ["", ",1"])
def test_a_quote_that_is_never_closed_takes_in_no_row(tmp_path, at, rest):
    """The line is named, and what came before it is read."""
    file = tmp_path / "a.csv"
    rows = [f"{row}{rest}" for row in GOOD]
    rows[at] = f'"{rows[at]}'
    file.write_text("\n".join([f"text{rest and ',n'}", *rows, ""]))
    good, (refused,) = sorted_out(open_corpus(file))
    assert [one.text for one in good] == GOOD[:at]
    assert (refused.name, refused.reason) == (f"a.csv#{at + 1}", "not CSV")
    assert f"the row that begins on line {at + 2}" in refused.detail
    assert "the rest of the file is left out" in refused.detail


def test_a_quote_that_a_later_one_seems_to_close(tmp_path):
    """The csv module by itself makes one document of lines 3 to 5, and mangles it."""
    file = tmp_path / "a.csv"
    file.write_text('text,n\nfirst,1\n"left open,2\nthird,3\n"fourth, quoted",4\nfifth,5\n')
    good, (refused,) = sorted_out(open_corpus(file))
    assert [one.text for one in good] == ["first"]
    assert "the row that begins on line 3: ',' expected after '\"'; the rest of the file is left out" in refused.detail


def test_lines_of_csv_are_bounded(tmp_path):
    """A line without an end is not held."""
    file = tmp_path / "a.csv"
    with file.open("w") as sink:
        sink.write("text,n\nfirst,1\n")
        for _ in range(300):
            sink.write("x" * 100_000)
        sink.write(",2\nlast,3\n")
    with Peak() as peak:
        good, (refused,) = sorted_out(open_corpus(file))
    assert peak.bytes < 3_000_000
    assert [one.text for one in good] == ["first"]
    assert (refused.name, refused.reason) == ("a.csv#2", "not CSV")


def test_names_that_are_not_utf_8(tmp_path):
    """They are read, and spelled so that they can be written anywhere."""
    folder = tmp_path / "corp\udce9"
    folder.mkdir()
    (folder / "caf\udce9.txt").write_text("coffee")
    (folder / "a.csv").write_bytes(b"te\xe9t\nx\n")
    corpus = open_corpus(folder)
    assert corpus.name == "corp\\xe9"
    result = read(corpus)
    assert [one.name for one in result] == ["a.csv", "caf\\xe9.txt"]
    assert isinstance(result[0], Refused)
    assert "the fields are te\\xe9t" in result[0].detail
    json.dumps([corpus.record(), result[0].record()], ensure_ascii=False).encode()
    (folder / "caf\\xe9.txt").write_text("another")
    with pytest.raises(InputError, match=r"1 file names are the same .* caf\\xe9\.txt"):
        open_corpus(folder)


def test_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(InputError, match="not a regular file"):
            open_corpus(name)
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert texts(open_corpus(tmp_path)) == {"a.txt": "text"}
    for opens in (open_corpus, hs.Survey, lambda name: hs.pair_heads(hs.open(), f"{name}.jsonl")):
        with pytest.raises(InputError, match=r"NUL|null"):
            opens("a\0b")
    with pytest.raises(InputError, match=r"File name too long|no such file"):
        open_corpus("a text instead of a list of texts, " * 10)
    with pytest.raises(InputError, match="a text is not a corpus"):
        open_corpus("a text\ninstead of a list of texts")


def test_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    """Its documents would silently be missing."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.txt").write_text("text")
    real = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(InputError, match="can't be listed: Permission denied") as caught:
        open_corpus(tmp_path)
    assert str(caught.value.where).endswith("closed")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32-le", "latin-1", "cp1252"])
def test_other_encodings_are_refused(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes("“Ça”, she said: 5".replace("“", '"').replace("”", '"').encode(encoding))
    assert set(refusals(open_corpus(tmp_path))) == {"a.txt"}
    (tmp_path / "a.txt").write_bytes("plain".encode(encoding))
    expected = {"a.txt"} if encoding.startswith("utf") else set()
    assert set(refusals(open_corpus(tmp_path))) == expected


def test_hostile_json_lines(tmp_path):
    file = tmp_path / "a.jsonl"
    lines = ["[" * 100_000, '{"a":' * 100_000, '{"n": ' + "9" * 5000 + "}", "\0", '{"text": "a", "text": "b"}', "{"]
    file.write_text("\n".join([*lines, '{"text": "good"}', '{"text": "a\\u0000b"}']))
    good, bad = sorted_out(open_corpus(file), most=10**6)
    assert [one.text for one in good] == ["good", "a\0b"]
    assert len(bad) == len(lines)


def test_parquet_and_arrow_files_cut_off_anywhere(tmp_path):
    """Whatever is missing: rows that are whole, or refusals that say what is wrong."""
    table = pyarrow.table({"text": TEXTS})
    parquet.write_table(table, tmp_path / "whole.parquet", row_group_size=2)
    with pyarrow.OSFile(str(tmp_path / "whole.arrow"), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table, max_chunksize=2)
    for ending in ("parquet", "arrow"):
        data = (tmp_path / f"whole.{ending}").read_bytes()
        file = tmp_path / f"cut.{ending}"
        for size in range(len(data)):
            file.write_bytes(data[:size])
            good, bad = sorted_out(open_corpus(file))
            assert [one.text for one in good] in [TEXTS[:2], TEXTS[:4], TEXTS, []]
            assert bad
            assert not any(str(tmp_path) in one.detail for one in bad)


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_arrow_offsets_that_point_out_of_the_file(tmp_path, kind):
    """pyarrow by itself reads beyond its memory."""
    texts = pyarrow.array(["one text", "another text", "a third"], pyarrow.large_string() if "large" in kind else None)
    table = pyarrow.table({"text": texts.dictionary_encode() if kind == "dictionary" else texts})
    file = tmp_path / "a.arrow"
    with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    width = "q" if "large" in kind else "i"
    offsets = struct.pack(f"<4{width}", 0, 8, 20, 27)
    data = file.read_bytes()
    assert data.count(offsets) == 1
    file.write_bytes(data.replace(offsets, struct.pack(f"<4{width}", 0, 8, 2**30, 2**30 + 7)))
    (refused,) = read(open_corpus(file))
    assert isinstance(refused, Refused)
    assert refused.reason == "damaged"


@pytest.mark.parametrize("count", [1, 2, 7, 400])
@pytest.mark.parametrize("text", ["One two.\n\nThree four\nfive. " * 40, "猫" * 900, "word " * 200, "\n\n a" * 3])
def test_pieces_of_a_document_are_the_document(text: str, count: int) -> None:
    """In their order they are the text, but for pieces of whitespace; none is empty."""
    pieces = list(in_pieces(Document("a.txt", text, weight=8.0), count))
    assert "".join(piece.text for piece in pieces).split() == text.split()
    assert all(piece.text.strip() for piece in pieces)
    assert 1 <= len(pieces) <= count
    assert len({piece.name for piece in pieces}) == len(pieces)


def test_pieces_end_with_paragraphs_or_else_words() -> None:
    pieces = [piece.text for piece in in_pieces(Document("a", "One two.\n\nThree four.\n\n" * 10), 4)]
    assert all(piece.endswith("\n\n") for piece in pieces)
    assert all(
        piece.endswith(" ") for piece in [piece.text for piece in in_pieces(Document("a", "word " * 50), 4)][:-1]
    )
    assert [piece.text for piece in in_pieces(Document("a", "a word"), 10**15)] == ["a ", *"word"]
    with pytest.raises(InputError, match="a treebank's documents"):
        next(in_pieces(Document("a", "…", sentences=(Sentence(1, ("a",), ("X",), (-1,), ("root",)),)), 2))


FRENCH = """\
# newdoc id = a
# sent_id = 1
# text = Vas-y du côté 猫
1	Vas	aller	VERB	_	_	0	root	_	SpaceAfter=No
2	-y	y	PRON	_	_	1	obl:arg	_	_
3-4	du	_	_	_	_	_	_	_	_
3	de	de	ADP	_	_	5	case	_	_
4	le	le	DET	_	_	5	det	_	_
5	côté	côté	NOUN	_	_	1	obl	_	_
5.1	allé	_	_	_	_	_	_	1:conj	_
5.2	loin	_	_	_	_	_	_	1:conj	_
6	猫 ?	猫	NOUN	_	_	5	appos	_	_

"""


def word(number: int, head: int | str, relation: str = "dep", form: str = "w") -> str:
    return f"{number}\t{form}\t_\tX\t_\t_\t{head}\t{relation}\t_\t_"


def documents(folder: Path, text: str | bytes) -> list[Document | Refused]:
    path = folder / "t.conllu"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_conllu(path, "t.conllu", field="text", max_document=10_000))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "cut"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_words_and_trees(tmp_path: Path, end: str, last: str, mark: str) -> None:
    text = mark + FRENCH.replace("\n", end)
    (document,) = documents(tmp_path, text[: -len(end)] if last else text)
    (sentence,) = document.sentences
    assert document.name == "t.conllu#1"
    assert sentence.words == ("Vas", "-y", "de", "le", "côté", "猫 ?")
    assert sentence.heads == (-1, 0, 4, 4, 0, 4)
    assert sentence.relations == ("root", "obl:arg", "case", "det", "obl", "appos")
    assert sentence.tags == ("VERB", "PRON", "ADP", "DET", "NOUN", "NOUN")
    assert sentence.line == 4


def test_documents(tmp_path: Path) -> None:
    """A sentence before the first `# newdoc` is a document of its own; then each comment begins one."""
    one = f"{word(1, 0, 'root')}\n\n"
    read = documents(tmp_path, one + one + "# newdoc\n" + one + one + "\n\n# newdoc id = b\n# newpar\n" + one)
    counts = [(document.name, len(document.sentences)) for document in read if isinstance(document, Document)]
    assert counts == [(f"t.conllu#{at}", count) for at, count in enumerate((1, 1, 2, 1), 1)]


BROKEN = {
    "columns": (f"{word(1, 0)}\n2\tonly\n\n", 2, "2 columns; expected 10"),
    "spaces for tabs": (word(1, 0).replace("\t", "    ") + "\n\n", 1, "1 columns"),
    "numbers": (f"{word(1, 0)}\n{word(3, 1)}\n\n", 2, "ID is '3'; expected 2"),
    "an odd number": (f"{word(1, 0)}\n{word(2, 1).replace('2', 'x', 1)}\n\n", 2, "ID is 'x'"),
    "no head": (f"{word(1, '_')}\n\n", 1, "HEAD is '_'"),
    "a negative head": (f"{word(1, '-1')}\n\n", 1, "HEAD is '-1'"),
    "a head beyond": (f"{word(1, 0)}\n{word(2, 3)}\n\n", 2, "HEAD is 3; there are 2 words"),
    "its own head": (f"{word(1, 0)}\n{word(2, 2)}\n\n", 2, "word 2 is above itself"),
    "a circle": (f"{word(1, 0)}\n{word(2, 3)}\n{word(3, 4)}\n{word(4, 2)}\n\n", 2, "is above itself"),
    "no relation": (f"{word(1, 0, '_')}\n\n", 1, "DEPREL is '_'"),
    "no form": (f"{word(1, 0, form='')}\n\n", 1, "FORM is ''"),
    "spaces": (f"{word(1, 0)}\n  \n", 2, "1 columns"),
    "Latin 1": (word(1, 0, form="é").encode("latin-1") + b"\n\n", 1, "0xe9, not UTF-8"),
    "plain text": ("Alice was beginning to get very tired.\n", 1, "1 columns"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken(tmp_path: Path, name: str) -> None:
    text, line, message = BROKEN[name]
    with pytest.raises(InputError) as raised:
        documents(tmp_path, text)
    assert message in raised.value.found
    assert raised.value.found.startswith(f"line {line}: ")
    assert raised.value.where == f"t.conllu, line {line}"


def test_bounds(tmp_path: Path) -> None:
    """A document may only be so long."""
    one = f"{word(1, 0, 'root')}\n\n"
    long, short = documents(tmp_path, "# newdoc\n" + one * 1000 + "# newdoc\n" + one)
    assert isinstance(long, Refused)
    assert long.reason == "too long"
    assert isinstance(short, Document)


def test_surveys_refuse_it_at_once(tmp_path: Path) -> None:
    """Before the model is loaded, and before a folder is made."""
    (tmp_path / "t.conllu").write_text(FRENCH + word(2, 0) + "\n\n", encoding="utf-8")
    with pytest.raises(InputError, match="ID is '2'; expected 1") as raised:
        hs.survey("no/such-model", tmp_path / "t.conllu", out=tmp_path / "out")
    assert raised.value.where == "t.conllu, line 14"
    assert not (tmp_path / "out").exists()


def test_corpora(tmp_path: Path) -> None:
    """A folder with treebanks is read as a treebank; a pattern that mixes them with texts is refused."""
    for name in ("a.conllu", "b.conllu"):
        (tmp_path / name).write_text(FRENCH, encoding="utf-8")
    (tmp_path / "README.md").write_text("A treebank.", encoding="utf-8")
    corpus = open_corpus(tmp_path)
    assert (corpus.kind, [name for _, name, _ in corpus.files]) == ("conllu", ["a.conllu", "b.conllu"])
    with pytest.raises(InputError, match="some files are treebanks"):
        open_corpus(str(tmp_path / "*.*"))
