"""Shared by the tests of surveys: a text, small options, a folder as bytes, and a death in the middle of a survey."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from transformers import AutoModel, AutoTokenizer

import headscope as hs
from headscope.atlas.corpus import open_corpus
from headscope.atlas.folder import Folder
from headscope.atlas.job import Job
from headscope.atlas.observe import Observed, observe
from headscope.atlas.replica import LocalWorkers
from headscope.atlas.run import source_of
from headscope.atlas.sample import sample_of
from headscope.atlas.survey_settings import SurveySettings
from headscope.checkpoint.resolve import BUNDLED
from headscope.screens.survey_sheet import survey_sheet
from headscope.screens.terminal import put

ALICE = (Path(__file__).parent.parent / "data" / "alice.txt").read_text(encoding="utf-8")

OPTIONS: dict[str, Any] = {"length": 32, "part_size": 500, "max_document": 10_000, "threads": 1, "report": False}
"""Small windows and parts, so that there are many of both. One thread, as in Ray's workers."""

TREEBANK = Path(__file__).parent.parent / "data" / "treebank" / "en_pud-first20.conllu"
SENTENCES: dict[str, Any] = {**OPTIONS, "statistics": "entropy", "examples": 4, "length": 96, "part_size": 5000}
"""Options of the survey of the treebank that several tests look at."""

Tree = tuple[list[str], list[int], list[str]]


def read_trees(path: Path) -> list[list[Tree]]:
    """Documents of sentences: forms, heads (0 for the root, as in the file) and relations."""
    documents: list[list[Tree]] = []
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        if "# newdoc" in block or not documents:
            documents.append([])
        rows = [line.split("\t") for line in block.splitlines() if not line.startswith("#")]
        rows = [row for row in rows if row[0].isdigit()]
        documents[-1].append(([row[1] for row in rows], [int(row[6]) for row in rows], [row[7] for row in rows]))
    return documents


class Looks:
    """What a model's heads look at in a sentence, by transformers' eager attention in fp64.

    Attributes:
        ids: of the tokens.
        of: each word's tokens.
        tokens: each layer's weights, (heads, tokens, tokens).
        words: each layer's weights, (heads, words, words): the sum over the key's tokens, the mean over the query's.
    """

    def __init__(self, model: Any, tokenizer: Any, words: list[str]) -> None:
        encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.inference_mode():
            attentions = model(**encoded, output_attentions=True).attentions
        of_tokens = encoded.word_ids()
        self.ids: list[int] = encoded["input_ids"][0].tolist()
        self.of = [[token for token, word in enumerate(of_tokens) if word == at] for at in range(len(words))]
        self.tokens = [attention[0].double().numpy() for attention in attentions]
        self.words = [self.by_word(layer) for layer in self.tokens]

    def by_word(self, weights: np.ndarray) -> np.ndarray:
        """Each head's weights between words; NaN for words without a token."""
        lacking = np.full((len(weights), 1), np.nan)
        to = np.stack([weights[..., key].sum(-1) if key else lacking * weights[..., 0] for key in self.of], -1)
        return np.stack([to[:, query].mean(1) if query else lacking * to[:, 0] for query in self.of], 1)


Naive = dict[tuple[str, int], tuple[Tree, Looks]]
"""Document and number of a sentence -> its tree, and what a model's heads look at."""


def observed(model: Any, corpus: Any, tokenizer: Any = None, **options: Any) -> Observed:
    """What a survey with these options observes of its sample."""
    source, own = source_of(model, tokenizer, None)
    settings = SurveySettings(**options).resolved(*own)
    with LocalWorkers(source, settings, threads=1) as workers:
        job = Job(Folder(Path("nowhere")), open_corpus(corpus), settings, workers, lambda _: None)
        for _ in job.parts():
            pass
        sample = sample_of(job.drawing.documents(), workers.each, settings)
        return observe(job, sample)


def numbers_of(survey: hs.Survey) -> dict[str, int]:
    """Document -> its number, by the hash of its content; even ones choose."""
    rows = parquet.read_table(survey.folder / "sample.parquet").to_pylist()
    return {row["document"]: row["number"] for row in rows}


def bundled_eager() -> tuple[Any, Any]:
    """The bundled model in transformers, and its tokenizer."""
    model = AutoModel.from_pretrained(BUNDLED, attn_implementation="eager").eval()
    return model, AutoTokenizer.from_pretrained(BUNDLED)


TOUCHING = ("open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.scandir")
"""Audit events of calls that touch files."""


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by its name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Died(BaseException):
    """The process is as good as killed: it touches no file from now on."""


_watching: list[Callable[[str, tuple[Any, ...]], None]] = []


@cache
def _watch_files() -> None:
    """Show every call that touches a file to the last of _watching; there is no way to stop this."""

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if _watching and event in TOUCHING:
            _watching[-1](event, args)

    sys.addaudithook(audit)


@contextmanager
def dying(name: str, files: int = 1, calls: int = 0) -> Iterator[None]:
    """Die in the block, and leave the files as a kill does: every call that touches one fails from then on.

    Args:
        name: how the names of the files begin that are counted.
        files: die when that many of them are about to get their names.
        calls: how many calls that touch files to let pass then.
    """
    _watch_files()

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal files, calls
        files -= event == "os.rename" and os.path.basename(args[1]).startswith(name)
        calls -= files <= 0
        if calls < 0:
            raise Died

    _watching.append(count)
    try:
        with pytest.raises(Died):
            yield
    finally:
        _watching.remove(count)


def screen_of(survey: hs.Survey) -> str:
    """What is printed of a survey, in one line."""
    screen = io.StringIO()
    put(survey_sheet(survey).drawings, screen)
    return " ".join(screen.getvalue().split())
