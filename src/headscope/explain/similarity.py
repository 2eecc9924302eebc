"""Similarity of two texts, token by token: the cosine of their vectors as a sum over pairs of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope._trace import TokenAxis
from headscope._trace.arrays import ArrayLike
from headscope.checkpoint.sentence import Pooling
from headscope.errors import CheckpointError, InputError
from headscope.explain.runs import encoded_text, last_states
from headscope.explain.sentence import cosines_with, pooled

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.checkpoint.tokenizer import Encoded
    from headscope.model import Model

LEAST_SHARED = 1e-12


@dataclass(frozen=True, eq=False)
class TokenSimilarity(ArrayLike):
    """The cosine of two texts, taken apart.

    Attributes:
        a, b: the texts.
        axis_a, axis_b: their tokens.
        cells: (tokens_a, tokens_b), what each pair of tokens adds; the sum is the cosine.
        drop_a, drop_b: what the cosine loses when one token's output vector is left out of the pooling: cosine before
            less cosine after, above 0 where the token makes the texts more alike. The other tokens' vectors stay as
            they are, so a token that the others have read still speaks through them; `rerun_a` is without it at all.
            NaN where nothing would be left to pool.
        rerun_a, rerun_b: likewise, but the model is run again without the token in its input, the later tokens one
            position earlier; None unless asked for.
        pooling: how the vectors are pooled.
        notes: what a reader should know: a text that was cut, a prompt that was not added.
    """

    a: str
    b: str
    axis_a: TokenAxis
    axis_b: TokenAxis
    cells: Float[np.ndarray, "tokens_a tokens_b"]
    drop_a: Float[np.ndarray, " tokens_a"]
    drop_b: Float[np.ndarray, " tokens_b"]
    rerun_a: Float[np.ndarray, " tokens_a"] | None
    rerun_b: Float[np.ndarray, " tokens_b"] | None
    pooling: Pooling
    notes: tuple[str, ...] = ()

    @property
    def tokens_a(self) -> tuple[str, ...]:
        """The first text's tokens."""
        return self.axis_a.tokens

    @property
    def tokens_b(self) -> tuple[str, ...]:
        """The second text's tokens."""
        return self.axis_b.tokens

    @property
    def cosine(self) -> float:
        """The cosine of the two texts' vectors, -1 to 1."""
        return float(self.cells.sum())

    @property
    def parts_a(self) -> Float[np.ndarray, " tokens_a"]:
        """(tokens_a,): each first token's part of the cosine; they add up to it."""
        return self.cells.sum(axis=1)

    @property
    def parts_b(self) -> Float[np.ndarray, " tokens_b"]:
        """(tokens_b,): each second token's part of the cosine; they add up to it."""
        return self.cells.sum(axis=0)

    @property
    def special(self) -> float:
        """The part of the cosine from pairs of which at least one token is special ([CLS], [SEP], …)."""
        words = np.outer(~np.array(self.axis_a.special), ~np.array(self.axis_b.special))
        return float(self.cells[~words].sum())

    @property
    def special_share(self) -> float:
        """The same divided by the cosine; NaN where the cosine is 0."""
        return self.special / self.cosine if abs(self.cosine) > LEAST_SHARED else float("nan")

    def strongest(self, count: int = 10, *, special: bool = False) -> list[tuple[int, int]]:
        """The pairs (token of a, token of b) that add most, the greatest first.

        Args:
            count: at most this many.
            special: also pairs with a special token.
        """
        cells = self.cells.copy()
        if not special:
            cells[np.array(self.axis_a.special)] = -np.inf
            cells[:, np.array(self.axis_b.special)] = -np.inf
        order = np.argsort(-cells, axis=None, kind="stable")[:count]
        rows, columns = np.unravel_index(order, cells.shape)
        return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True) if np.isfinite(cells[i, j])]

    @property
    def array(self) -> Float[np.ndarray, "..."]:  # type: ignore[override]
        """The array that this record stands for: `cells`."""
        return self.cells

    def __repr__(self) -> str:
        return (
            f"cosine {self.cosine:.4f} of {len(self.axis_a)} and {len(self.axis_b)} tokens, "
            f"{self.special:.4f} of it with special tokens; {self.pooling}"
        )


def cells_of(
    a: Float[np.ndarray, "tokens_a d_model"], b: Float[np.ndarray, "tokens_b d_model"], pooling: Pooling
) -> Float[np.ndarray, "tokens_a tokens_b"]:
    """The parts of a cosine, (tokens_a, tokens_b), in fp64.

    With the mean a = sum_i h_i / n and b = sum_j h_j / m of two texts of n and m tokens,

        cos(a, b) = sum_ij h_i . h_j / (n m |a| |b|),

    which is exact: pooling and inner product are linear, and normalisation divides by the two lengths that the cosine
    divides by anyway. Pooling by the first token puts all of it into cell (0, 0). O(n m d_model).
    """
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(pooled(a, pooling)) * np.linalg.norm(pooled(b, pooling))
    if pooling.mode == "mean":
        return (wide_a @ wide_b.T) / (len(a) * len(b) * lengths)
    cells = np.zeros((len(a), len(b)))
    cells[0, 0] = wide_a[0] @ wide_b[0] / lengths
    return cells


def drops(
    hidden: Float[np.ndarray, "tokens d_model"], other: Float[np.ndarray, " d_model"], pooling: Pooling
) -> Float[np.ndarray, " tokens"]:
    """The loss of the cosine with another text's vector when a token's vector is left out of the pooling.

    The mean of n tokens without token i is (n a - h_i) / (n - 1), so all of it costs O(n d_model). A vector that
    pooling doesn't read has drop 0.
    """
    whole = pooled(hidden, pooling)
    if pooling.mode == "cls":
        return np.where(np.arange(len(hidden)) == 0, np.nan, 0.0)
    if len(hidden) == 1:
        return np.array([np.nan])
    rest = (len(hidden) * whole - hidden.astype(np.float64)) / (len(hidden) - 1)
    return cosines_with(other, whole[None]) - cosines_with(other, rest)


def token_similarity(
    model: Model, a: str, b: str, *, rerun: bool = False, max_length: int | None = None
) -> TokenSimilarity:
    """Find the tokens that make two texts alike; see `cells_of` for the formula.

    The vectors are those of sentence-transformers: pooling, normalisation and the length at which a text is cut are
    read from the checkpoint. A checkpoint without modules.json is pooled by the mean, as sentence-transformers does
    with one, and `pooling.stated` is False.

    Args:
        model: the model.
        a: the first text.
        b: the second text.
        rerun: also run the model once for each token, without that token in its input. Special tokens are left out
            likewise. It costs tokens_a + tokens_b forward passes.
        max_length: cut a longer text to this many tokens; the checkpoint's own limit by default.

    Raises:
        InputError: an empty or too long text; upper case in a text that sentence-transformers would lower-case.
        UnsupportedError: pooling other than mean or cls, or a model that headscope doesn't run.
        CheckpointError: a vector is 0 or not made of numbers, so that there is no cosine.
    """
    pooling = model.pooling
    most = pooling.max_length if max_length is None else max_length
    notes = []
    encoded = []
    for which, text in (("the first text", a), ("the second text", b)):
        if pooling.lowercase and isinstance(text, str) and text != text.lower():
            raise InputError(
                f"{which} has upper case, which sentence-transformers would remove (do_lower_case)",
                where="sentence_bert_config.json",
                advice="pass the text in lower case",
            )
        whole = encoded_text(model, text, max_length=None)
        cut = encoded_text(model, text, max_length=most) if most is not None and len(whole) > most else whole
        if len(cut) < len(whole):
            notes.append(f"{which} was cut from {len(whole)} to {len(cut)} tokens, as sentence-transformers cuts it")
        encoded.append(cut)
    if pooling.prompt:
        notes.append(f"sentence-transformers would put the prompt {pooling.prompt!r} before each text; none was added")
    states = last_states(model, encoded)
    cells = cells_of(states[0], states[1], pooling)
    if not np.isfinite(cells).all():
        raise CheckpointError(
            "a text's vector is 0 or not made of numbers, so there is no cosine",
            where=model.checkpoint.where,
            advice="`headscope verify` says where NaN or infinity comes from",
        )
    vectors = [pooled(state, pooling) for state in states]
    again = [rerun_drops(model, encoded[at], vectors[at], vectors[1 - at], pooling) for at in (0, 1) if rerun]
    axis_a, axis_b = (axis_of(text) for text in encoded)
    return TokenSimilarity(
        a=a,
        b=b,
        axis_a=axis_a,
        axis_b=axis_b,
        cells=cells,
        drop_a=drops(states[0], vectors[1], pooling),
        drop_b=drops(states[1], vectors[0], pooling),
        rerun_a=again[0] if again else None,
        rerun_b=again[1] if again else None,
        pooling=pooling,
        notes=tuple(notes),
    )


def rerun_drops(
    model: Model,
    encoded: Encoded,
    vector: Float[np.ndarray, " d_model"],
    other: Float[np.ndarray, " d_model"],
    pooling: Pooling,
) -> Float[np.ndarray, " tokens"]:
    """The loss of the cosine when the model runs without one token in its input, for each token of a text."""
    if len(encoded) == 1:
        return np.array([np.nan])
    shorter = (
        (encoded.ids[:at] + encoded.ids[at + 1 :], encoded.segments[:at] + encoded.segments[at + 1 :])
        for at in range(len(encoded))
    )
    again = np.stack([pooled(state, pooling) for state in last_states(model, shorter)])
    return cosines_with(other, vector[None]) - cosines_with(other, again)


def axis_of(encoded: Encoded) -> TokenAxis:
    """The tokens of an encoded text, as a trace has them."""
    return TokenAxis(encoded.tokens, encoded.ids, encoded.segments, encoded.special, encoded.words, encoded.spans)
