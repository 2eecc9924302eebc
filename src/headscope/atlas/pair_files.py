"""Documents whose words somebody has paired, and the weights between their words, for headscope.atlas.pair_heads.

- `.jsonl`: {"words": ["The", "cat"], "pairs": [[0, 1]]} in each line: coreference, alignment, whatever has pairs; with
  {"text": "MKV", ...} every letter is a word. Positions count from 0.
- `.conllu`: the arcs of a treebank, from a word to its head; punctuation's are left out, unless relations are named.
- `.pdb`, `.ent`, or a folder of them: the first chain of a protein; residues whose C-beta atoms (C-alpha of glycine)
  are closer than 8 Angstrom are pairs (Rao et al. 2021; they count pairs at least 6 residues apart).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from headscope.atlas.documents import Refused, read_conllu
from headscope.checkpoint.json_text import JsonError, brief, parse_object
from headscope.errors import InputError, UnsupportedError
from headscope.explain.residual import weights_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from headscope.model import Model
    from headscope.results.head_values import Head
    from headscope.traces import LayerRecord, Trace

Pairs: TypeAlias = Iterable[tuple[str | Sequence[str], Iterable[tuple[int, int]]] | Mapping[str, Any]]
FORMS = (
    'give a .jsonl file of {"words": ["The", "cat"], "pairs": [[0, 1]]}, a .conllu file, a .pdb file, or a folder '
    "of .pdb files"
)
FOLDS = 5
"""Folds that the documents are divided into, each in turn held out."""
CONTACT = 8.0
"""Angstrom: closer residues are in contact."""
LONGEST = 1 << 24
"""Bytes of a line or of a document."""
NAMES = "ALAARGASNASPCYSGLNGLUGLYHISILELEULYSMETPHEPROSERTHRTRPTYRVALMSESECPYL"
RESIDUES = {NAMES[3 * at : 3 * at + 3]: letter for at, letter in enumerate("ARNDCQEGHILKMFPSTWYVMUO")}
"""Names of residues in the Protein Data Bank, and their letters; others are X."""


@dataclass(frozen=True)
class Marked:
    """A document: its words, and the pairs of their positions that are marked."""

    name: str
    words: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]


def read_marked(documents: str | os.PathLike[str] | Pairs, relations: str | Iterable[str] | None) -> list[Marked]:
    """Return the documents that have pairs.

    Raises:
        InputError: a file that can't be read, a pair that isn't one, or relations of something else than a treebank.
    """
    treebank = False
    if isinstance(relations, str):
        relations = [name.strip() for name in relations.split(",")]
    if isinstance(documents, str | os.PathLike):
        path = Path(documents)
        if "\0" in str(path):
            raise InputError("a path can't contain a NUL character", where=repr(str(path)), advice=FORMS)
        treebank = path.suffix == ".conllu"
        try:
            found = list(_read(path, None if relations is None else frozenset(relations)))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"it can't be read: {error}", where=str(path), advice=FORMS) from error
    elif isinstance(documents, Mapping) or hasattr(documents, "columns") or not isinstance(documents, Iterable):
        advice = "pass a list: [document]"
        if hasattr(documents, "columns"):
            advice = "pass its rows: frame.to_dict('records')"
        raise InputError(f"expected documents, got {type(documents).__name__}", where="documents", advice=advice)
    else:
        found = [_checked(f"document {at}", *_parts(one, f"document {at}")) for at, one in enumerate(documents)]
    if relations is not None and not treebank:
        raise InputError(
            "only a treebank has relations", where="relations", advice="pass a .conllu file, or leave it out"
        )
    found = [one for one in found if one.pairs]
    if not found:
        raise InputError("no document has a pair", where=str(documents)[:200], advice=FORMS)
    return found


def _read(path: Path, relations: frozenset[str] | None) -> Iterator[Marked]:
    if path.is_dir():
        for file in sorted(file for file in path.iterdir() if file.suffix in (".pdb", ".ent")):
            yield _protein(file)
    elif path.suffix == ".conllu":
        yield from _trees(path, relations)
    elif path.suffix in (".pdb", ".ent"):
        yield _protein(path)
    elif path.suffix == ".jsonl":
        yield from _lines(path)
    else:
        raise InputError(
            f"{path.suffix or 'a file without a suffix'} is no form of pairs", where=str(path), advice=FORMS
        )


def _lines(path: Path) -> Iterator[Marked]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST):
            number += 1
            if not line.strip():
                continue
            name = f"{path.name}#{number}"
            try:
                record = parse_object(line.decode(), unique=True)
            except JsonError as error:
                raise InputError(f"line {number} isn't a document: {error}", where=str(path), advice=FORMS) from error
            yield _checked(name, *_parts(record, name))


def _parts(document: Any, name: str) -> tuple[Any, Any]:
    """The words and the pairs of a document, given as a line of a file has them, or as two."""
    if isinstance(document, Mapping):
        return document.get("words", document.get("text")), document.get("pairs")
    if not isinstance(document, Sequence) or isinstance(document, str) or len(document) != 2:
        raise InputError(f"{brief(document)} is no document with pairs", where=name, advice=FORMS)
    return document[0], document[1]


def _checked(name: str, words: Any, pairs: Any) -> Marked:
    """A document whose pairs are pairs of different words."""
    if not isinstance(words, str | Sequence) or not all(isinstance(word, str) and word.strip() for word in words):
        raise InputError(f"its words are {brief(words)}: expected a list of words", where=name, advice=FORMS)
    found = []
    for pair in pairs if isinstance(pairs, Iterable) and not isinstance(pairs, str) else [pairs]:
        places = tuple(pair) if isinstance(pair, Iterable) and not isinstance(pair, str) else (pair,)
        numbers = [int(at) for at in places if isinstance(at, int | np.integer) and not isinstance(at, bool)]
        if len(places) != 2 or len(numbers) != 2 or not all(0 <= at < len(words) for at in numbers):
            raise InputError(
                f"{brief(pair)} is no pair of positions from 0 to {len(words) - 1}", where=name, advice=FORMS
            )
        if numbers[0] == numbers[1]:
            raise InputError(f"{brief(pair)} pairs a word with itself", where=name, advice="leave it out")
        found.append((numbers[0], numbers[1]))
    return Marked(name, tuple(words), tuple(dict.fromkeys(found)))


def _trees(path: Path, relations: frozenset[str] | None) -> Iterator[Marked]:
    for document in read_conllu(path, path.name, field="text", max_document=LONGEST):
        if isinstance(document, Refused):
            raise InputError(document.detail, where=document.name, advice=FORMS)
        for sentence in document.sentences:
            arcs = tuple(
                (word, head)
                for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True))
                if head >= 0 and (relation != "punct" if relations is None else relation in relations)
            )
            yield Marked(f"{path.name}, line {sentence.line}", sentence.words, arcs)


def _protein(path: Path) -> Marked:
    """The residues of the first chain, and those in contact. The columns are those of the format's version 3.3."""
    atoms: dict[str, dict[str, tuple[float, float, float]]] = {}
    names: dict[str, str] = {}
    chain = None
    for number, line in enumerate(path.read_text(encoding="ascii", errors="replace").splitlines(), 1):
        if line.startswith(("ENDMDL", "TER")) and names:
            break
        residue = line[17:20].strip()
        if not (line.startswith("ATOM  ") or (line.startswith("HETATM") and residue in ("MSE", "SEC", "PYL"))):
            continue
        chain = line[21:22] if chain is None else chain
        if line[21:22] != chain:
            break
        try:
            place = float(line[30:38]), float(line[38:46]), float(line[46:54])
        except ValueError:
            place = (np.nan,) * 3
        if not np.isfinite(place).all():
            raise InputError(f"line {number} has no coordinates", where=str(path), advice=FORMS)
        key = line[22:27]
        names.setdefault(key, residue)
        atoms.setdefault(key, {}).setdefault(line[12:16].strip(), place)
    kept = [key for key, atom in atoms.items() if "CB" in atom or "CA" in atom]
    if not kept:
        raise InputError("no residue has a C-alpha or C-beta atom", where=str(path), advice=FORMS)
    places = np.array([atoms[key].get("CB", atoms[key].get("CA")) for key in kept])
    pairs = [
        (at, at + 1 + int(other))
        for at in range(len(kept))
        for other in np.flatnonzero(np.linalg.norm(places[at + 1 :] - places[at], axis=1) < CONTACT)
    ]
    return Marked(path.name, tuple(RESIDUES.get(names[key], "X") for key in kept), tuple(pairs))


class WordTokens:
    """The words of a trace that have tokens, and those tokens."""

    def __init__(self, trace: Trace, count: int) -> None:
        if trace.keys is not trace.queries:
            found = "queries and keys are different sequences, and a pair is of one"
            raise UnsupportedError(found, where="pair_heads", advice="pass an encoder's model")
        of_token = np.array([-1 if word is None else word for word in trace.words])
        sizes = np.bincount(of_token[of_token >= 0], minlength=count)
        self.kept = np.flatnonzero(sizes)
        """The words with tokens, by their numbers in the document."""
        self.tokens = np.argsort(of_token, kind="stable")[np.count_nonzero(of_token < 0) :]
        """(tokens,), the words' tokens, word by word."""
        self.sizes = sizes[self.kept]
        """(words,), how many tokens each has."""


def word_weights(record: LayerRecord, words: WordTokens) -> Iterator[Float[np.ndarray, "words words"]]:
    """Yield each head's weights between words: sums over the tokens that are seen, means over those that look."""
    starts = np.cumsum(words.sizes) - words.sizes
    for weights in weights_of(record, words.tokens, words.tokens):  # head by head, in fp64
        sums = np.add.reduceat(weights.astype(np.float64), starts, axis=1)
        yield np.add.reduceat(sums, starts, axis=0) / words.sizes[:, None]


def heads_of(trace: Trace) -> list[Head]:
    """Each head's layer and number, layer by layer."""
    return [(layer, head) for layer in trace.numbers for head in trace.head_numbers(layer)]


def read_words(model: Model, one: Marked, apart: int) -> tuple[Trace, WordTokens, set[tuple[int, int]], int]:
    """A document's trace, its words, its pairs as places among the words that have tokens, and how many others it has.

    Raises:
        InputError: the text is too long, or it has no such pair.
    """
    try:
        trace = model.trace(words=list(one.words))
    except InputError as error:
        raise InputError(error.found, where=one.name, advice=error.advice) from error
    words = WordTokens(trace, len(one.words))
    place = {int(word): rank for rank, word in enumerate(words.kept)}
    wanted = {pair for pair in one.pairs if apart <= abs(pair[1] - pair[0])}
    ranks = {(place[i], place[j]) for i, j in wanted if i in place and j in place}
    if not ranks:
        found = f"no marked pair has tokens on both sides and {apart} words from one to the other"
        raise InputError(found, where=one.name, advice="leave the document out, or lower apart")
    return trace, words, ranks, len(wanted) - len(ranks)


def folds_of(
    count: int, chosen_on: int | None
) -> tuple[list[Bool[np.ndarray, " documents"]], Bool[np.ndarray, " documents"]]:
    """The documents that each fold reports on, and those that heads are chosen on in the end.

    Args:
        count: number of documents.
        chosen_on: number of documents at the beginning that choose; None for five folds, each in turn held out.
    """
    number = np.arange(count)
    if chosen_on:
        return [number >= chosen_on], number < chosen_on
    return [number % FOLDS == fold for fold in range(min(FOLDS, count))], number >= 0
