"""The workers of a survey: their interface, and the one replica that runs in this process (Ray's are in on_ray.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from headscope.atlas.corpus_effects import Batch, EffectWindow
from headscope.atlas.documents import CorpusPart, Document, Done
from headscope.atlas.head_distance_windows import ChosenWindow
from headscope.atlas.lines import Read, Reading
from headscope.atlas.loading import ModelSource
from headscope.atlas.replica import ModelDescription, Replica, limit_threads
from headscope.atlas.survey_settings import Settings
from headscope.atlas.writes import WriteBatch


class Workers(Protocol):
    """One replica in this process, or several on Ray."""

    @property
    def described(self) -> ModelDescription:
        """The model as the replicas describe it."""

    def run(self, todo: Iterator[CorpusPart], stamp: dict[str, Any]) -> Iterator[Done]:
        """Yield each part with its file, its record and the files beside it, in the order in which they finish."""

    def compare(self, todo: Iterator[tuple[ChosenWindow, Document]]) -> Iterator[tuple[ChosenWindow, np.ndarray]]:
        """Yield each window with the distances between all pairs of heads, in the order in which they finish."""

    def cut(self, todo: Iterator[tuple[tuple[ChosenWindow, ...], Document]]) -> Iterator[EffectWindow]:
        """Yield each window of each document as effects read it, in the order in which they finish."""

    def effects(self, todo: Iterator[Batch]) -> Iterator[tuple[Batch, np.ndarray]]:
        """Yield each batch with its numbers, see WindowReader.numbers, in the order in which they finish."""

    def writes(self, todo: Iterator[WriteBatch]) -> Iterator[tuple[WriteBatch, np.ndarray]]:
        """Yield each batch with its gains, see headscope.atlas.writes, in the order in which they finish."""

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Tokens as the vocabulary spells them."""

    def read(self, todo: Iterator[Reading]) -> Iterator[tuple[Reading, Read]]:
        """Yield each window with the rows that are wanted of it, in the order in which they finish."""

    def vectors(self, ids: Sequence[int]) -> np.ndarray:
        """Input embeddings of some tokens: see token_vectors."""


class LocalWorkers:
    """One replica in this process; numbers of threads are restored on exit."""

    def __init__(self, source: ModelSource, settings: Settings, *, threads: int | None) -> None:
        self._restore_threads = limit_threads(threads)
        try:
            self._replica = Replica(source, settings)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        self._restore_threads()

    @property
    def described(self) -> ModelDescription:
        """The model as the replica describes it."""
        return self._replica.described

    def run(self, todo: Iterator[CorpusPart], stamp: dict[str, Any]) -> Iterator[Done]:
        """See Workers; the order is that of the corpus."""
        for part in todo:
            yield part, *self._replica.run(part, stamp)

    def compare(self, todo: Iterator[tuple[ChosenWindow, Document]]) -> Iterator[tuple[ChosenWindow, np.ndarray]]:
        """See Workers; the order is that of the corpus."""
        for window, document in todo:
            yield window, self._replica.compare(document, window.window)

    def cut(self, todo: Iterator[tuple[tuple[ChosenWindow, ...], Document]]) -> Iterator[EffectWindow]:
        """See Workers; the order is that of the corpus."""
        for places, document in todo:
            yield from self._replica.cut(document, places)

    def effects(self, todo: Iterator[Batch]) -> Iterator[tuple[Batch, np.ndarray]]:
        """See Workers; the order is that of the batches."""
        for batch in todo:
            yield batch, self._replica.effects(batch)

    def writes(self, todo: Iterator[WriteBatch]) -> Iterator[tuple[WriteBatch, np.ndarray]]:
        """See Workers; the order is that of the batches."""
        for batch in todo:
            yield batch, self._replica.writes(batch)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """See Workers."""
        return self._replica.tokens(ids)

    def read(self, todo: Iterator[Reading]) -> Iterator[tuple[Reading, Read]]:
        """See Workers; the order is that of the corpus."""
        for reading in todo:
            yield reading, self._replica.read(reading)

    def vectors(self, ids: Sequence[int]) -> np.ndarray:
        """See Workers."""
        return self._replica.vectors(ids)
