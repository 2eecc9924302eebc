"""The reader of treebanks: what the format allows is read, and whatever breaks it is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

import headscope as hs
from headscope.atlas.corpus import open_corpus
from headscope.atlas.documents import Document, Refused, read_conllu
from headscope.errors import InputError

TREEBANK = Path(__file__).parent.parent / "data" / "treebank" / "en_pud-first20.conllu"

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
    assert isinstance(document, Document)
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
    assert [(document.name, len(document.sentences)) for document in read if isinstance(document, Document)] == [
        ("t.conllu#1", 1),
        ("t.conllu#2", 1),
        ("t.conllu#3", 2),
        ("t.conllu#4", 1),
    ]


def test_a_whole_treebank() -> None:
    read = list(open_corpus(TREEBANK).documents("text", 10**7))
    assert len(read) == 9
    sentences = [sentence for document in read if isinstance(document, Document) for sentence in document.sentences]
    lines = TREEBANK.read_text(encoding="utf-8").splitlines()
    assert len(sentences) == sum(line.startswith("# sent_id") for line in lines) == 20
    assert sum(len(sentence.words) for sentence in sentences) == sum(line.count("\t") == 9 for line in lines)


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
    """A line, a sentence and a document may only be so long."""
    with pytest.raises(InputError, match="more than 1,048,576 bytes"):
        documents(tmp_path, word(1, 0, form="w" * (1 << 20)) + "\n\n")
    with pytest.raises(InputError, match=r"10,001 words; expected 1 to 10,000"):
        documents(tmp_path, "\n".join(word(number + 1, 0) for number in range(10_001)) + "\n\n")
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


def test_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "t.conllu").write_bytes(b"\n\n")
    with pytest.raises(InputError, match="it has no sentence"):
        hs.survey("-", tmp_path / "t.conllu", out=tmp_path / "out")
