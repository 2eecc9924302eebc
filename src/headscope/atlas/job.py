"""A survey at work: what it is made of, the workers that run its model, and the batches of windows that they get."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from headscope.atlas.documents import CorpusPart, parts
from headscope.atlas.sample import Drawing
from headscope.atlas.store import array_and_record

if TYPE_CHECKING:
    from headscope.atlas.corpus import Corpus
    from headscope.atlas.folder import Folder
    from headscope.atlas.survey_settings import Settings
    from headscope.heads.windows import Window
    from headscope.results.head_values import Head

Task = TypeVar("Task")


class Batch(NamedTuple):
    """Windows that a replica runs side by side.

    Attributes:
        at: its number among the batches.
        windows: the windows.
        heads: for `effects`: those to silence one by one.
        queries: for `observe`: of each window, the words drawn by lot.
        rows: for `read`: the layer, which of its heads, and the query word of each row.
    """

    at: int
    windows: tuple[Window, ...]
    heads: tuple[Head, ...] = ()
    queries: tuple[tuple[int, ...], ...] = ()
    rows: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class ModelDescription:
    """A replica's model, as the other parts of a survey need to know it.

    Attributes:
        model: for the manifest: name, class, sha256, parameters, layers, heads, config, tokenizer, running.
        length: tokens per window.
        statistics: the columns.
        left_out: statistic that the model doesn't support -> why.
        heads: (layer, head) of every head, layer 0's first.
    """

    model: dict[str, Any]
    length: int
    statistics: tuple[str, ...]
    left_out: dict[str, str]
    heads: tuple[Head, ...]


class Workers(AbstractContextManager["Workers"]):
    """One replica in this process, or several on Ray, until the block ends.

    Attributes:
        described: the model as the replicas describe it.
    """

    described: ModelDescription

    @abstractmethod
    def each(self, method: str, tasks: Iterable[Task], *others: Any) -> Iterator[tuple[Task, Any]]:
        """Yield each task with what this method of a replica makes of it, in the order in which they finish.

        Args:
            method: a name of Replica's.
            tasks: its first argument, one by one.
            others: its other arguments.
        """

    def once(self, method: str, task: Any) -> Any:
        """Have one task done: see each."""
        ((_, result),) = self.each(method, [task])
        return result


@dataclass(frozen=True, eq=False)
class Job:
    """A survey that is being made.

    Attributes:
        folder: what it is written to.
        corpus: what is read.
        settings: what its numbers depend on.
        workers: what runs the model.
        progress: is told of each stage.
    """

    folder: Folder
    corpus: Corpus
    settings: Settings
    workers: Workers
    progress: Callable[[str], None]

    @property
    def heads(self) -> tuple[Head, ...]:
        """(layer, head) of every head, layer 0's first."""
        return self.workers.described.heads

    @cached_property
    def drawing(self) -> Drawing | None:
        """Draws the sample; None if nothing is measured over one."""
        settings = self.settings
        wanted = settings.choices or settings.windows or self.corpus.kind == "conllu"
        words = max(settings.sample, settings.windows * self.workers.described.length)
        return Drawing(words) if wanted else None

    def parts(self) -> Iterator[CorpusPart]:
        """Read the corpus part by part, and draw from it."""
        settings = self.settings
        documents = self.corpus.documents(settings.field, settings.max_document, settings.pieces)
        every = parts(documents, settings.part_size)
        return every if self.drawing is None else self.drawing.passing(every)

    def arrays(
        self, method: str, batches: Sequence[Batch], name: str, record: Mapping[str, Any], *others: Any
    ) -> Iterator[np.ndarray]:
        """The array that a method of a replica makes of each batch, in order; each is a file, and measured once.

        Args:
            method, others: see Workers.each.
            batches: its first argument, one by one.
            name: how the files' names begin.
            record: what they are measured on.
        """
        names = [f"{name}-{batch.at:05}.npy" for batch in batches]
        missing = [batch for batch in batches if self.folder.array(names[batch.at], record) is None]
        for batch, found in self.workers.each(method, missing, *others):
            self.folder.write_array(names[batch.at], found, record)
        yield from (array_and_record((self.folder.path / name).read_bytes())[0] for name in names)
