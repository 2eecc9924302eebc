"""What a part's words do in every head, taken while the model runs: for syntax, labels and examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headscope._capture.calls import Call
from headscope._survey.meaning import Vectors
from headscope._survey.pairs import PairLists
from headscope._survey.shapes import Shapes
from headscope._survey.strongest import Strongest, StrongestTokens
from headscope._survey.sums import Marks, Spread, Sums
from headscope._survey.syntax import Pairs, SyntaxCounts
from headscope._survey.windows import Window
from headscope._survey.words import tiles


class Acts:
    """Reads the layers of each batch word by word.

    Args:
        heads: (layer, head) of all heads.
        windows: all windows of the part.
        names: of its documents.
        vectors: the model's input embeddings, for “similar meaning”.
        syntax: whether the windows are trees whose relations are counted.
        pairs: how many of the strongest pairs are kept of each head; None without labels and examples.

    Attributes:
        windows: the windows of the batch that runs; set before the model does.
    """

    def __init__(
        self,
        heads: Sequence[tuple[int, int]],
        windows: Sequence[Window],
        names: Sequence[str],
        vectors: Vectors,
        *,
        syntax: bool,
        pairs: int | None,
    ) -> None:
        layers = np.array([layer for layer, _ in heads])
        self._cells = {
            int(layer): slice(
                int(np.argmax(layers == layer)), int(np.argmax(layers == layer) + (layers == layer).sum())
            )
            for layer in np.unique(layers)
        }
        self._vectors = vectors
        self.windows: Sequence[Window] = ()
        self.syntax = SyntaxCounts(len(heads)) if syntax else None
        self.sums = Sums(len(heads)) if pairs is not None else None
        self.shapes = Shapes(len(heads))
        self.pairs = PairLists(windows, names, pairs) if pairs is not None else None
        self._trees: dict[int, tuple[Pairs, np.ndarray]] = {}
        self._marks: list[Marks] = []

    def begin(self, windows: Sequence[Window]) -> None:
        """The windows of the next batch."""
        if self.pairs is not None:
            self.pairs.flush()
            self._marks = [Marks(window, self._vectors) for window in windows]
        self.windows = windows
        if self.syntax is not None:
            self._trees = {}
            for row, window in enumerate(windows):
                assert window.words is not None
                assert window.words.sentence is not None
                pairs = Pairs(window.words.sentence, window.words)
                self._trees[row] = pairs, self.syntax.begin(window.document, pairs)

    def take(self, call: Call) -> None:
        """One layer of the batch."""
        cells = self._cells[call.layer]
        for row, window in enumerate(self.windows):
            assert window.words is not None
            heads = call.q.shape[1]
            strongest = Strongest(window.words, heads, call.q, seen=self.syntax is not None)
            tokens = StrongestTokens(window.words, heads)
            spread = Spread(self._marks[row], window.words, heads) if self.sums is not None else None
            for tile in tiles(call, row, window.words):
                if spread is not None:
                    entropies = spread.take(tile)
                    self.shapes.take(tile, entropies, self._marks[row].silent, cells)
                    tokens.take(tile)
                strongest.take(tile)  # last: it overwrites the tile
            strongest.done()
            if self.sums is not None and self.pairs is not None and spread is not None:
                self.sums.take(window.document, self._marks[row], strongest, spread, cells)
                self.shapes.done(strongest, cells)
                self.pairs.take(window, self._marks[row], strongest, spread, tokens.done(), cells)
            if self.syntax is not None:
                pairs, rows = self._trees[row]
                self.syntax.take(rows, pairs, strongest, cells)

    def files(self, record: dict[str, Any], renumbered: dict[int, int]) -> dict[str, bytes]:
        """Kind -> the file beside the part. `renumbered`: the document's number in the part."""
        files = {}
        if self.syntax is not None:
            files["syntax"] = self.syntax.file(record, renumbered)
        if self.sums is not None and self.pairs is not None:
            self.pairs.flush()
            files["acts"] = self.sums.file(record, renumbered)
            files["shapes"] = self.shapes.file(record)
            files.update(self.pairs.files(record, renumbered))
        return files
