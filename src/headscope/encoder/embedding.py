"""From ids to the input of the first layer: word + position + token type, normalised and projected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.anatomy import Anatomy
    from headscope.encoder.role_weights import EncoderWeights

    Tokens = Float[np.ndarray, "tokens d_model"]

MASKED_IN_TRAINING = 0.15 * 0.8
"""Share of the tokens that were <mask> while ESM was trained (Lin et al. 2023, supplement A.1)."""


@dataclass(frozen=True)
class Input:
    """One text as the encoder takes it: ids and segments, (S,) each."""

    ids: Int[np.ndarray, " tokens"]
    segments: Int[np.ndarray, " tokens"]


def embed(weights: EncoderWeights, sequences: Sequence[Input]) -> Tokens:
    """Word + position + token type, normalised; (tokens of all texts, d_model).

    A family without one of the tables, or without the norm, leaves it out: with rotary positions there is no table of
    them.
    """
    anatomy = weights.anatomy
    ids = np.concatenate([sequence.ids for sequence in sequences])
    x = np.array(weights.weight("embeddings.word.weight")[ids])
    if anatomy.family is not None and anatomy.family.holds("token_dropout", {"token_dropout": False, **anatomy.config}):
        drop_masks(x, sequences, int(anatomy.setting("mask_id")))
    if (table := weights.held("embeddings.position.weight")) is not None:
        x += table[np.concatenate([positions(anatomy, sequence.ids) for sequence in sequences])]
    if anatomy.known().types:
        segments = np.concatenate([sequence.segments for sequence in sequences])
        x += weights.weight("embeddings.token_type.weight")[segments]
    if (table := weights.held("embeddings.task_type.weight")) is not None:
        x += table[0]
    first = anatomy.family is not None and anatomy.family.projects_first
    projects = weights.held("projection.weight") is not None
    if projects and first:
        x = weights.linear(x, "projection")
    if weights.held("embeddings.norm.weight") is not None:
        x = weights.norm(x, "embeddings.norm")
    if projects and not first:
        x = weights.linear(x, "projection")
    return x


def positions(anatomy: Anatomy, ids: Int[np.ndarray, " tokens"]) -> Int[np.ndarray, " tokens"]:
    """The row of the position table for each token.

    BERT counts from 0. RoBERTa counts non-padding tokens from padding_id + 1; padding has position padding_id.
    """
    if anatomy.family is None or anatomy.family.position_offset is None:
        return np.arange(len(ids))
    padding = int(anatomy.setting("padding_id"))
    real = ids != padding
    return np.cumsum(real) * real + padding


def drop_masks(x: Tokens, sequences: Sequence[Input], mask: int) -> None:
    """ESM's token dropout, in place: <mask> is 0, and the others make up for it, text by text.

    The factor is (share of other tokens in training) / (share of other tokens in this text).
    """
    start = 0
    for sequence in sequences:
        part = x[start : start + len(sequence.ids)]
        masked = sequence.ids == mask
        part[masked] = 0
        part *= np.float32(1 - MASKED_IN_TRAINING)
        part /= np.float32(1) - np.float32(masked.sum()) / np.float32(len(masked))
        start += len(masked)


def check(anatomy: Anatomy, sequence: Input) -> None:
    """Check that the embedding tables have a row for every id, segment and position.

    Raises:
        InputError: an id, a segment or a position is beyond its table.
    """
    sizes = anatomy.known()
    for kind, values, limit in (
        ("id", sequence.ids, sizes.vocab),
        ("segment", sequence.segments, sizes.types or None),
    ):
        beyond = np.flatnonzero((values < 0) | (values >= limit)) if limit is not None else np.array([], int)
        if len(beyond):
            at = int(beyond[0])
            raise InputError(
                f"{kind} {int(values[at])} is out of range: the model has {limit} {kind}s",
                where=f"token {at} of {len(values)}",
                advice=f"{kind}s run from 0 to {limit - 1 if limit else 0}",
            )
    longest = anatomy.longest_text
    if sizes.positions and len(sequence.ids) > longest:
        raise InputError(
            f"the text has {len(sequence.ids):,} tokens, the model takes {longest:,} at most",
            where="max_position_embeddings",
            advice=f"shorten the text, or pass max_length={longest} (--set max_length={longest}) to cut it there",
        )
