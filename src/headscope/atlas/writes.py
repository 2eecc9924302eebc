"""Tokens that each head writes: those that its output makes likelier where they are right, on text it hasn't seen.

At a masked token the frequency of tokens, f, predicts p(v) = f(v). A head's prediction is

    p(v) = f(v) exp(e(v) [v in R]) / Z

with e(v) its effect on v's masked-LM logit there (see `promotes`); nothing is fitted. One half of the windows counts f
and chooses R, the tokens that gain most, each alone; the other half says how many bits per masked token R gains.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow

from headscope.atlas.job import Batch, Job
from headscope.encoder import Input
from headscope.errors import not_a_number
from headscope.explain.promotes import all_promote, with_masked_lm
from headscope.files import make_folder
from headscope.heads.intervals import mean_interval
from headscope.results.schemas import WriteRow, table_of
from headscope.runs.masking import mask_of
from headscope.runs.texts import batches
from headscope.runs.window_readouts import masked_places

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.atlas.sample import Sample
    from headscope.heads.windows import Window
    from headscope.model import Model
    from headscope.results.head_values import Head

WORDS = 10
"""Most tokens in R."""

CANDIDATES = 256
"""The most frequent tokens at the masks of the choosing half, from which R is chosen: rarer ones can't gain much."""

TWICE = 2
"""Fewest occurrences of a candidate."""

DOCUMENTS = 10
"""Fewest documents in each half. Of fewer, every other window chooses, and intervals are over windows."""

SURE = 0.001
"""Bits per masked token that the interval must reach for a head to be said to write its tokens."""


def check_writer(model: Model) -> None:
    """Check that what the heads of a model write can be told.

    Raises:
        UnsupportedError: it has no masked-LM head, its layers have another formula, its tokenizer has no mask token, or
            headscope doesn't run it.
    """
    model.anatomy.computable()
    with_masked_lm(model, model.checkpoint.where)
    mask_of(model)


def gains(
    model: Model,
    windows: Sequence[Window],
    tokens: Int[np.ndarray, "heads_or_one k"],
    shares: Float[np.ndarray, "heads_or_one k"],
    together: bool,
) -> Float[np.ndarray, "rows columns"]:
    """The gain of each head's tokens over f, in nats: log p(token) - log f(token), summed over masked tokens.

    Args:
        model, windows: the windows run side by side.
        tokens: of each head, layer 0's first, or one row for all; -1 for none.
        shares: their frequencies; 0 for none.
        together: True for a head's tokens as one R, False for each alone.

    Returns:
        (heads_total, k), each token alone, over the whole batch; or (windows, heads_total), a head's tokens together.

    Raises:
        InputError: an id is beyond the vocabulary, or a window is longer than the position table.
        CheckpointError: a number is not finite.
    """
    texts, places, right = _masked(model, windows)
    window_of = np.repeat(np.arange(len(places)), [len(at) for at in places])
    sizes = model.anatomy.known()
    heads = sizes.layers * sizes.heads
    total = np.zeros((len(places), heads) if together else (heads, tokens.shape[1]))
    with np.errstate(divide="ignore"):
        others = np.log1p(-np.minimum(shares.sum(1, keepdims=True) if together else shares, 1))
        share = np.log(shares)
    for rows, effects in all_promote(model, texts, places, tokens):
        e = effects.astype(np.float64)
        gain = np.where(tokens[:, None] == right[rows, None], e, 0)
        weighed = share[:, None] + e  # log f(v) exp(e(v))
        if together:
            log_Z = np.logaddexp(others, np.logaddexp.reduce(weighed, axis=-1))
            np.add.at(total, window_of[rows], (gain.sum(-1) - log_Z).T)
        else:
            total += (gain - np.logaddexp(others[:, None], weighed)).sum(1)
    if not np.isfinite(total).all():
        raise not_a_number("a head's effect on the logits is not a number", model.checkpoint.where)
    return total


def _masked(
    model: Model, windows: Sequence[Window]
) -> tuple[list[Input], list[Int[np.ndarray, " _"]], Int[np.ndarray, " masked"]]:
    """Windows with their masks, the masked positions of each, and the tokens that stood there."""
    texts, places, truth = [], [], []
    for window in windows:
        at, ids = np.array(masked_places(window), dtype=np.int64), window.ids.copy()
        places.append(at)
        truth.append(ids[at])
        ids[at] = mask_of(model)
        texts.append(Input(ids, window.segments))
    return texts, places, np.concatenate(truth)


class _Half(NamedTuple):
    """One half of the windows.

    Attributes:
        windows: in the order of documents and of windows in them.
        units: of each window, what intervals are over: the document's number, or its own.
    """

    windows: list[Window]
    units: list[int]

    @property
    def masked(self) -> Int[np.ndarray, " windows"]:
        """Masked tokens of each window."""
        return np.array([len(masked_places(window)) for window in self.windows], dtype=np.int64)


def measure(job: Job, sample: Sample) -> pyarrow.Table:
    """`survey.writes`: each head's tokens, and what they gain. Every batch is a file of the folder, and measured once.

    Peak memory grows linearly with the windows; a batch gives a number for each head and candidate, or window.
    """
    make_folder(job.folder.path / "writes")
    heads, unknown = job.heads, job.workers.described.model["writes"]["unknown"]
    choosing, held_out, by_document = _halves(sample.windows[: job.settings.writes])

    def gains_of(half: str, of: _Half, tokens: np.ndarray, shares: np.ndarray) -> Iterator[np.ndarray]:
        """Results of `gains` for each batch of a half, in order."""
        record = {"tokens": hashlib.sha256(tokens.astype("<i8").tobytes() + shares.astype("<f8").tobytes()).hexdigest()}
        parts = batches(of.windows, len, job.settings.batch_tokens)
        todo = [Batch(at, tuple(part)) for at, part in enumerate(parts)]
        job.progress(f"writes: {half.replace('-', ' ')} half of the windows")
        return job.arrays("writes", todo, f"writes/{half}", record, tokens, shares, half == "held-out")

    candidates, shares = _candidates(choosing, unknown)
    alone = np.zeros((len(heads), len(candidates)))
    for part in gains_of("choosing", choosing, candidates[None], shares[None]):
        alone += part
    order = np.argsort(-alone, axis=1, kind="stable")[:, :WORDS]
    gained = np.take_along_axis(alone, order, axis=1) / max(choosing.masked.sum(), 1) / np.log(2)
    best = np.where(gained > 0, candidates[order], -1)
    of_best = np.where(gained > 0, shares[order], 0)
    bits = np.full((3, len(heads)), np.nan)
    if held_out.windows and best.shape[1]:
        bits = _bits(held_out, np.concatenate([*gains_of("held-out", held_out, best, of_best)]))
    kept = sorted({*best.ravel().tolist()} - {-1})
    names = dict(zip(kept, job.workers.once("tokens", kept), strict=True))
    return _table(heads, best, gained, bits, held_out, by_document, names)


def _halves(windows: Sequence[Window]) -> tuple[_Half, _Half, bool]:
    """The half that chooses and the half that reports; and whether these are halves of the documents."""
    ordered = sorted(windows, key=lambda window: (window.document, window.number))
    numbers = [window.document for window in ordered]
    by_document = all(len({n for n in numbers if n % 2 == half}) >= DOCUMENTS for half in (0, 1))
    units = numbers if by_document else list(range(len(ordered)))
    first, second = (
        _Half(
            [window for window, unit in zip(ordered, units, strict=True) if unit % 2 == half],
            [unit for unit in units if unit % 2 == half],
        )
        for half in (0, 1)
    )
    return first, second, by_document


def _candidates(half: _Half, unknown: int | None) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """The tokens that R may have, and their frequencies among all tokens of the half but special ones."""
    counts: Counter[int] = Counter()
    masked: Counter[int] = Counter()
    for window in half.windows:
        counts.update(window.ids[~window.roles.special].tolist())
        masked.update(window.ids[masked_places(window)].tolist())
    often = sorted((-count, token) for token, count in masked.items() if count >= TWICE and token != unknown)[
        :CANDIDATES
    ]
    found = np.array([token for _, token in often], dtype=np.int64)
    return found, np.array([counts[token] for token in found.tolist()]) / max(counts.total(), 1)


def _bits(half: _Half, found: Float[np.ndarray, "windows heads_total"]) -> Float[np.ndarray, "3 heads_total"]:
    """Bits per masked token over the half, and the bounds of the 95 % interval over its units, NaN for only one.

    The interval of a ratio by its linearisation: mean -+ t s / sqrt(n) of ratio + n (sum_u - ratio count_u) / total.
    """
    units, of = np.unique(half.units, return_inverse=True)
    counts = np.bincount(of, weights=half.masked)
    sums = np.zeros((len(units), found.shape[1]))
    np.add.at(sums, of, found / np.log(2))
    ratio = sums.sum(0) / max(counts.sum(), 1)
    return np.stack(mean_interval(ratio + len(units) * (sums - ratio * counts[:, None]) / max(counts.sum(), 1)))


def _table(
    heads: Sequence[Head],
    best: Int[np.ndarray, "heads k"],
    gained: Float[np.ndarray, "heads k"],
    bits: Float[np.ndarray, "3 heads"],
    held_out: _Half,
    by_document: bool,
    names: Mapping[int, str],
) -> pyarrow.Table:
    present = best >= 0
    rows = []
    for cell, place in enumerate(heads):
        mean, low, high = bits[:, cell].tolist()
        tokens = [names[token] for token in best[cell, present[cell]].tolist()]
        rows.append(
            WriteRow(
                *place,
                tokens,
                gained[cell, present[cell]].tolist(),
                mean,
                low,
                high,
                bool(tokens) and low >= SURE,
                int(held_out.masked.sum()),
                len(held_out.windows),
                len({window.document for window in held_out.windows}),
                "documents" if by_document else "windows",
            )
        )
    return table_of(WriteRow, rows)
