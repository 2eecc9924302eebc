"""Statistics of two models over the same documents: means, and differences with their intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from headscope._compare.changes import Change, per_head
from headscope._survey.corpus import open_corpus
from headscope._survey.documents import Document
from headscope._survey.settings import MAX_DOCUMENT
from headscope.errors import InputError
from headscope.explain.intervals import t_975
from headscope.statistics.catalog import chosen

if TYPE_CHECKING:
    import os

    from jaxtyping import Float

    from headscope.model import Model

BATCH = 8
"""Documents whose traces are in memory together."""
LENGTH = 512
"""Tokens at which a document is cut, where the models take as many."""


def statistics_over(
    a: Model,
    b: Model,
    corpus: str | os.PathLike[str] | Iterable[str],
    *,
    statistics: str | Iterable[str] | None,
    max_length: int | None,
    field: str,
) -> tuple[dict[str, Change], int, tuple[str, ...]]:
    """Run both models on the same documents: name -> Change, how many documents, notes.

    Raises:
        InputError: the corpus has no document that can be read, or there is no such statistic.
        UnsupportedError: headscope doesn't run this model.
    """
    names = chosen(statistics)
    a.anatomy.computable()
    b.anatomy.computable()
    most = min(a.anatomy.longest_text, b.anatomy.longest_text)
    length = min(LENGTH, most) if max_length is None else max_length
    if isinstance(corpus, str) and "\n" in corpus:
        raise InputError("a text is not a corpus", where="corpus", advice="pass a list of texts: [text]")
    read = list(open_corpus(corpus).documents(field, MAX_DOCUMENT))
    texts = [document.text for document in read if isinstance(document, Document)]
    if not texts:
        raise InputError("the corpus has no document that can be read", where="corpus", advice="pass other texts")
    tables: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    cut = differing = 0
    waiting = iter(texts)
    while batch := list(islice(waiting, BATCH)):
        traces = [model.trace(batch, max_length=length) for model in (a, b)]
        for first, other in zip(*traces, strict=True):
            cut += len(first) == length
            differing += first.tokens != other.tokens
            for trace, table in zip((first, other), tables, strict=True):
                statistics_of = trace.statistics(names)
                table.append(np.stack([statistics_of[name].array for name in names]))
    notes = [f"{len(read) - len(texts)} documents could not be read"] if len(read) > len(texts) else []
    notes += [f"documents are cut at {length} tokens: {cut} of {len(texts)} reach that length"] if cut else []
    if differing:
        notes.append(f"the tokenizers differ on {differing} of {len(texts)} documents: means are over different tokens")
    if len(texts) < 2:
        notes.append("one document gives no interval")
    values_a, values_b = (np.stack(table).astype(np.float64) for table in tables)
    return _changes(names, values_a, values_b), len(texts), tuple(notes)


def _changes(
    names: Sequence[str],
    a: Float[np.ndarray, "documents statistics layers heads"],
    b: Float[np.ndarray, "documents statistics layers heads"],
) -> dict[str, Change]:
    """Paired means; documents in which one of the two has no value count in neither."""
    present = ~np.isnan(a) & ~np.isnan(b)
    count = present.sum(0)
    mean_a, mean_b, change = (_mean(values, present, count) for values in (a, b, b - a))
    squares = np.where(present, np.square(b - a - change), 0).sum(0)
    half = np.array([np.nan if n < 2 else t_975(n - 1) / np.sqrt(n) for n in range(len(a) + 1)])[count]
    half = half * np.sqrt(squares / np.maximum(count - 1, 1))
    return {
        name: Change(*(per_head(name, array[at]) for array in (mean_a, mean_b, change, change - half, change + half)))
        for at, name in enumerate(names)
    }


def _mean(
    values: Float[np.ndarray, "documents ..."], present: np.ndarray, count: np.ndarray
) -> Float[np.ndarray, "..."]:
    total = np.where(present, values, 0).sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
