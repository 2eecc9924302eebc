"""The thresholds of findings, in one table, each with its source; and the surprise that ranks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

THRESHOLDS = {
    "previous": 0.5,
    "next": 0.5,
    "same": 0.5,
    "same_word": 0.3,
    "cls": 0.5,
    "sep": 0.5,
    "punctuation": 0.5,
    "link": 0.3,
    "alike": 0.8,
    "negligible": 0.1,
}
"""From which number on there is something to say.

previous, next: a mean weight above one half, from which Clark et al. 2019, section 3.1, count a head as attending to
    its neighbour. same: likewise.
cls, sep, punctuation: a mean weight above one half on all tokens of the role together, the measure of Clark et al.
    2019, section 3.2, for layers that rest on [SEP].
same_word: the mean weight on other tokens of the same word, over the queries that have one. Ours: Wang et al. 2023 name
    duplicate-token heads without a threshold.
link: one weight. Ours: a query can give as much to three keys at most.
alike: the mean share of weight that two heads put on the same keys. Ours.
negligible: the mean length of what a head writes, over the mean of its layer's heads: at most this. Ours.
"""

LEAST_SURPRISE = 0.1
"""Nats. A number that lies nearer to what the head does anyway is no finding."""

LEAST_SHARE = 1e-6
"""Shares are read as at least this far from 0 and from 1, so that no surprise is infinite."""

ALIKE_ROWS = 32
"""At most so many queries, evenly spaced, on which heads are compared with one another."""

LEAST_ALIKE_ROWS = 4
"""With fewer queries, two heads look alike by chance."""

MOST_LINKS = 64
"""At most so many links of a layer are looked at more closely, the most surprising ones."""

MOST_OF_A_KIND = 8
"""At most so many findings of one kind."""

LEAST_TOKENS = 2
"""Of a text, special tokens left out: with fewer, no token has another to look at."""


def surprise(share: float | Float[np.ndarray, " n"], expected: float | Float[np.ndarray, " n"]) -> Any:
    """The distance of a share of a head's weight from the expected one, in nats; 0 where they agree.

    The Kullback-Leibler divergence of two yes-or-no choices: share log(share / expected) + the same of what is left.
    It is half of Dunning 1993's log-likelihood ratio for one query.
    """
    p, e = (np.clip(value, LEAST_SHARE, 1 - LEAST_SHARE) for value in (share, expected))
    divergence = p * np.log(p / e) + (1 - p) * np.log((1 - p) / (1 - e))
    return divergence if np.ndim(divergence) else float(divergence)
