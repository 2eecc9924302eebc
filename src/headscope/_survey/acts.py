"""What a part's words do in every head, taken while the model runs: for syntax, labels and examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headscope._capture.calls import Call
from headscope._survey.strongest import Strongest
from headscope._survey.syntax import Pairs, SyntaxCounts
from headscope._survey.windows import Window
from headscope._survey.words import tiles


class Acts:
    """Reads the layers of each batch word by word.

    Attributes:
        windows: the windows of the batch that runs; set before the model does.
    """

    def __init__(self, heads: Sequence[tuple[int, int]], *, syntax: bool) -> None:
        layers = np.array([layer for layer, _ in heads])
        self._cells = {
            int(layer): slice(
                int(np.argmax(layers == layer)), int(np.argmax(layers == layer) + (layers == layer).sum())
            )
            for layer in np.unique(layers)
        }
        self.windows: Sequence[Window] = ()
        self.syntax = SyntaxCounts(len(heads)) if syntax else None
        self._trees: dict[int, tuple[Pairs, np.ndarray]] = {}

    def begin(self, windows: Sequence[Window]) -> None:
        """The windows of the next batch."""
        self.windows = windows
        if self.syntax is not None:
            self._trees = {}
            for row, window in enumerate(windows):
                assert window.words is not None and window.words.sentence is not None
                pairs = Pairs(window.words.sentence, window.words)
                self._trees[row] = pairs, self.syntax.begin(window.document, pairs)

    def take(self, call: Call) -> None:
        """One layer of the batch."""
        cells = self._cells[call.layer]
        for row, window in enumerate(self.windows):
            assert window.words is not None
            strongest = Strongest(window.words, call.q.shape[1], call.q)
            for tile in tiles(call, row, window.words):
                strongest.take(tile)
            strongest.done()
            if self.syntax is not None:
                pairs, rows = self._trees[row]
                self.syntax.take(rows, pairs, strongest, cells)

    def files(self, record: dict[str, Any], renumbered: dict[int, int]) -> dict[str, bytes]:
        """Kind -> the file beside the part. `renumbered`: the document's number in the part."""
        found = {}
        if self.syntax is not None:
            found["syntax"] = self.syntax.file(record, renumbered)
        return found
