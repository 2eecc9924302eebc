"""The work done here, by one replica, part after part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from headscope._survey.documents import Document, Done, Part
from headscope._survey.likeness import Chosen
from headscope._survey.loading import Source
from headscope._survey.replica import Described, Replica
from headscope._survey.settings import Settings


class LocalWorkers:
    """One replica in this process. Torch has as many threads afterwards as before."""

    def __init__(self, source: Source, settings: Settings, *, threads: int | None) -> None:
        self._threads = torch.get_num_threads()
        try:
            self._replica = Replica(source, settings, threads)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self._threads)

    @property
    def described(self) -> Described:
        """What it knows of the model."""
        return self._replica.described

    def run(self, todo: Iterator[Part], stamp: dict[str, Any]) -> Iterator[Done]:
        """In order."""
        for part in todo:
            yield part, *self._replica.run(part, stamp)

    def compare(self, todo: Iterator[tuple[Chosen, Document]]) -> Iterator[tuple[Chosen, np.ndarray]]:
        """In order."""
        for chosen, document in todo:
            yield chosen, self._replica.compare(document, chosen.window)
