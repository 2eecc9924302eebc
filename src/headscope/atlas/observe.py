"""Observations of a part's words in every head, taken while the model runs: for syntax, labels and examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headscope.atlas.labels.choices import ChoiceLists, Choices
from headscope.atlas.shapes import Distances, Strongest
from headscope.atlas.sums import Sums, WordFlags
from headscope.atlas.syntax import Pairs, SyntaxCounts
from headscope.atlas.words import tiles
from headscope.heads.windows import Window
from headscope.live.calls import Call


class WindowObserver:
    """Reads the layers of each batch word by word.

    Args:
        heads: (layer, head) of all heads.
        windows: all windows of the part.
        names: of its documents.
        syntax: whether the windows are trees whose relations are counted.
        choices: whether choices are kept, for labels and examples.

    Attributes:
        windows: the windows of the batch that runs; set before the model does.
    """

    def __init__(
        self,
        heads: Sequence[tuple[int, int]],
        windows: Sequence[Window],
        names: Sequence[str],
        *,
        syntax: bool,
        choices: bool,
    ) -> None:
        layers = np.array([layer for layer, _ in heads])
        self._cells = {
            int(layer): slice(
                int(np.argmax(layers == layer)), int(np.argmax(layers == layer) + (layers == layer).sum())
            )
            for layer in np.unique(layers)
        }
        self.windows: Sequence[Window] = ()
        self.syntax = SyntaxCounts(len(heads)) if syntax else None
        self.sums = Sums(len(heads))
        self.distances = Distances(len(heads))
        self.lists = ChoiceLists(windows, names, len(heads)) if choices else None
        self._trees: dict[int, tuple[Pairs, np.ndarray]] = {}
        self._flags: list[WordFlags] = []

    def begin(self, windows: Sequence[Window]) -> None:
        """The windows of the next batch."""
        if self.lists is not None:
            self.lists.flush()
            self._flags = [WordFlags(window) for window in windows]
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
            choices = Choices(window.words, heads, call.q) if self.lists is not None else None
            for tile in tiles(call, row, window.words):
                if choices is not None:
                    flags = self._flags[row]
                    self.distances.take(tile, flags.silent, cells)
                    self.sums.take(tile, flags, window.words, cells)
                    choices.take(tile)
                strongest.take(tile)  # last: it overwrites the tile
            strongest.done()
            if self.lists is not None and choices is not None:
                self.lists.take(window, choices, strongest, cells)
            if self.syntax is not None:
                pairs, rows = self._trees[row]
                self.syntax.take(rows, pairs, strongest, cells)

    def files(self, record: dict[str, Any], renumbered: dict[int, int]) -> dict[str, bytes]:
        """Kind -> the file beside the part. `renumbered`: the document's number in the part."""
        files = {}
        if self.syntax is not None:
            files["syntax"] = self.syntax.file(record, renumbered)
        if self.lists is not None:
            self.lists.flush()
            files["heads"] = self.sums.file(record, self.lists)
            files["distances"] = self.distances.file(record)
            files.update(self.lists.files(record, renumbered))
        return files
