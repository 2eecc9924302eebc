"""The sums behind labels over each half of the documents: those with even numbers choose, the others report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headscope._survey.beside import read_beside
from headscope._survey.intervals import Moments
from headscope._survey.sums import SUMS, read_sums

if TYPE_CHECKING:
    from jaxtyping import Float


class Halves:
    """The sums of documents with even and with odd numbers, summed to what shares and intervals need.

    Args:
        folder: the survey's.
        documents: how many documents each part has.
        cells: how many heads.
        scores: which columns are counted, and out of which.

    Attributes:
        documents: of each half.
    """

    def __init__(self, folder: Path, documents: Sequence[int], cells: int, scores: Iterable[tuple[str, str]]) -> None:
        self._moments: dict[tuple[int, str, str], Float[np.ndarray, "sums heads"]] = {}
        self._totals = np.zeros((2, cells, len(SUMS)))
        self.documents = [0, 0]
        kept = list(dict.fromkeys(scores))
        before = 0
        for table, count in zip(read_beside(folder, "acts", len(documents)), documents, strict=True):
            sums = read_sums([table], cells)
            for half in (0, 1):
                of = sums[(np.arange(before, before + count) % 2) == half]
                self.documents[half] += len(of)
                self._totals[half] += of.sum(0)
                for counted, out_of in kept:
                    self._add((half, counted, out_of), of)
            before += count

    def _add(self, key: tuple[int, str, str], sums: Float[np.ndarray, "documents heads sums"]) -> None:
        hits, counts = _column(sums, key[1]), _column(sums, key[2])
        present = counts > 0
        moments = np.stack([hits, counts, hits * hits, hits * counts, counts * counts, present.astype(float)])
        moments = np.where(present, moments, 0.0).sum(1)
        self._moments[key] = self._moments[key] + moments if key in self._moments else moments

    def moments(self, half: int, cell: int, score: tuple[str, str]) -> Moments:
        """A score over a half's documents."""
        moments = Moments()
        *sums, documents = self._moments[half, score[0], score[1]][:, cell]
        moments.sums, moments.documents = np.array(sums), int(documents)
        return moments

    def total(self, half: int, cell: int, name: str) -> float:
        """A sum over a half's documents."""
        return float(_column(self._totals[half, cell], name))

    def share(self, half: int, cell: int, counted: str, out_of: str) -> float:
        """A sum over another, over a half's documents."""
        counts = self.total(half, cell, out_of)
        return self.total(half, cell, counted) / counts if counts else math.nan


def _column(sums: np.ndarray, name: str) -> np.ndarray:
    if name == "key_and_query":
        return np.asarray(_column(sums, "key") + _column(sums, "query"))
    return np.asarray(sums[..., SUMS.index(name)])
