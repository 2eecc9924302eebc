"""The choices that labels and examples are made from: each head's strongest, and those of words drawn by lot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

if TYPE_CHECKING:
    from headscope.atlas.observe import Observed

STRONGEST = 300
"""Pairs of each head and half of the documents."""

TWICE = 2
"""Number of times that a pair of forms may be among them."""

SAMPLE_WORDS, SAMPLE_CELLS = 2000, 1 << 18
"""Windows of each half are drawn until so many words look, or have so many words to look at."""

RANDOM = 2
"""The list of words drawn by lot, beside those of documents with even (0) and odd (1) numbers."""

COLUMNS = ("list", "cell", "window", "query", "key", "strength", "weight", "query_word", "key_word")


def capped(forms: Sequence[Any]) -> Iterator[int]:
    """Places of those that are among the first TWICE of their kind."""
    counts: dict[Any, int] = {}
    for at, form in enumerate(forms):
        counts[form] = counts.get(form, 0) + 1
        if counts[form] <= TWICE:
            yield at


def pairs_of(observed: Observed) -> pyarrow.Table:
    """The pairs of every head: the strongest of each half, the strongest first, and those drawn by lot."""
    rows = [row for half in (0, 1) for row in _strongest(observed, half)]
    for (window, query), (keys, weights) in observed.drawn.items():
        for cell in np.flatnonzero(keys >= 0).tolist():
            weight = float(weights[cell])
            rows.append((RANDOM, cell, window, query, int(keys[cell]), weight, weight))
    words = [observed.windows[window].words.forms for _, _, window, *_ in rows]
    table = {name: [row[at] for row in rows] for at, name in enumerate(COLUMNS[:-2])}
    for name in ("query", "key"):
        table[f"{name}_word"] = [forms[at] for forms, at in zip(words, table[name], strict=True)]
    return pyarrow.table(table)


def _strongest(observed: Observed, half: int) -> Iterator[tuple[Any, ...]]:
    """Rows of the strongest pairs of one half."""
    places = [place for place, window in enumerate(observed.windows) if window.document % 2 == half]
    if not places:
        return
    looking = [np.flatnonzero(observed.windows[place].words.looks) for place in places]
    window, query = np.repeat(places, list(map(len, looking))), np.concatenate(looking)
    key, strength, weight = (
        np.concatenate([of[place] for place in places], 1) for of in (observed.keys, observed.strength, observed.weight)
    )
    names: dict[str, int] = {}
    folded = [
        np.array([names.setdefault(form.casefold(), len(names)) for form in observed.windows[place].words.forms])
        for place in places
    ]
    starts = np.repeat(np.cumsum([0, *map(len, folded[:-1])]), list(map(len, looking)))
    forms = np.concatenate(folded)
    for cell in range(observed.cells):
        some = np.flatnonzero(strength[cell] > 0)
        some = some[np.lexsort((query[some], window[some], -strength[cell, some]))]
        both = forms[starts[some] + query[some]] * len(names) + forms[starts[some] + key[cell, some]]
        kept = some[list(capped(both.tolist()))][:STRONGEST]
        columns = (window[kept], query[kept], key[cell, kept], strength[cell, kept], weight[cell, kept])
        yield from ((half, cell, *row) for row in zip(*(column.tolist() for column in columns), strict=True))


def drawn_windows(observed: Observed, half: int) -> list[int]:
    """The first windows of a half, until they have enough words."""
    looking = cells = 0
    drawn = []
    for place, window in enumerate(observed.windows):
        if window.document % 2 != half:
            continue
        if looking >= SAMPLE_WORDS or cells >= SAMPLE_CELLS:
            break
        looks = int(window.words.looks.sum())
        drawn.append(place)
        looking, cells = looking + looks, cells + looks * len(window.words)
    return drawn
