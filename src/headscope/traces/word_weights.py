"""Weights with a name for each query and key: between tokens, or between words.

Between words, the weight is the sum over the tokens that are seen and the mean over those that look, so that each row
still sums to 1 (Clark, Khandelwal, Levy and Manning 2019, “What Does BERT Look At?”, section 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.results.arrays import NamedMap, TokenAxis
from headscope.results.tokens import whole_words

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from headscope.traces.record import Trace
    from headscope.traces.views import HeadTrace


def by_words(heads: Sequence[HeadTrace], *, special: bool = True, single: bool = False) -> NamedMap:
    """The weights between words of some heads of a trace.

    Args:
        heads: the heads.
        special: True to keep special tokens, each as a word of its own.
        single: True for a map without an axis for the heads.
    """
    trace = heads[0].trace
    (rows, sizes, kept, names), (columns, _, seen, key_names) = (
        _words(axis, trace, special) for axis in (trace.queries, trace.keys)
    )
    found = np.zeros((len(heads), len(sizes), columns[-1] + 1))
    starts = np.flatnonzero(np.diff(columns, prepend=-1))
    for at, head in enumerate(heads):
        for (span, _), cells in head.weights.blocks():
            np.add.at(found[at], rows[span], np.add.reduceat(cells.astype(np.float64), starts, axis=1))
    found = (found / sizes[:, None])[:, kept][:, :, seen]
    numbers = tuple((head.layer, head.head) for head in heads)
    return NamedMap.of(found[0] if single else found, names, key_names, () if single else numbers)


def _words(
    axis: TokenAxis, trace: Trace, special: bool
) -> tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, " words"], Bool[np.ndarray, " words"], tuple[str, ...]]:
    """Each token's word, how many tokens each word has, whether it is kept, and the names of those that are."""
    own = axis is trace.queries  # the trace's texts are those of its queries
    numbers, names = whole_words(axis, trace.text if own else None, trace.pair if own else None)
    places = np.array(numbers)
    kept = np.ones(len(names), dtype=bool)
    if not special:
        kept[places[np.array(axis.special, dtype=bool)]] = False
    return places, np.bincount(places), kept, tuple(np.array(names, dtype=object)[kept])


def frame(trace: Trace, layer: int, head: int, *, words: bool = False, special: bool = True) -> Any:
    """A head's weights as a frame of pandas: see `Trace.frame`."""
    one = trace[layer, head]
    if words:
        return one.by_words(special=special).to_pandas()
    rows, columns = (
        np.flatnonzero(~np.array(axis.special, dtype=bool) | special) for axis in (trace.queries, trace.keys)
    )
    queries, keys = (
        [axis.tokens[at] for at in places] for axis, places in ((trace.queries, rows), (trace.keys, columns))
    )
    return NamedMap.of(one.weights[rows][:, columns], queries, keys, ()).to_pandas()
