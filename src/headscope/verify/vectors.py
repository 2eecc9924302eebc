"""A side that gives only vectors, a saved array; and what a difference of vectors costs in search."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.checkpoint import called
from headscope.errors import InputError, first_line
from headscope.heads.distances import relative
from headscope.results.parity import Cost, Parity
from headscope.results.report import Check
from headscope.verify.diagnosis import diagnose
from headscope.verify.hypotheses import Replay
from headscope.verify.sides import CheckpointSide

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.verify.sides import Side

    Vectors = Float[np.ndarray, "texts d"]

MOST_BYTES = 1 << 31
REASON = "the tolerance that was set"


def read_vectors(path: str | os.PathLike[str]) -> np.ndarray:
    """The vectors of a .npy file; nothing is unpickled.

    Raises:
        InputError: it can't be read, or is too large.
    """
    where, advice = os.fspath(path), "save the vectors with numpy.save(file, array), one row for each text"
    try:
        if Path(path).stat().st_size > MOST_BYTES:
            raise InputError(f"the file has more than {MOST_BYTES:,} bytes", where=where, advice="pass fewer texts")
        return np.array(np.lib.format.open_memmap(where, mode="r"))  # checks the size, and takes no objects
    except InputError:
        raise
    except Exception as error:  # NumPy's reader of headers has no class of its own for damaged ones
        raise InputError(f"the vectors can't be read: {first_line(error)}", where=where, advice=advice) from error


def check_vectors(vectors: Any, texts: int, width: int, where: str) -> np.ndarray:
    """The vectors in fp64.

    Raises:
        InputError: another number of rows than of texts, another width, or numbers that are none.
    """
    array = np.asarray(vectors)
    if array.ndim != 2 or array.dtype.kind != "f" or array.shape != (texts, width):
        raise InputError(
            f"expected {texts} vectors of {width} numbers, got {array.dtype} of shape {array.shape}",
            where=where,
            advice="pass a vector for each text, in their order, by the same model",
        )
    if not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0, 0])
        raise InputError(f"vector {row} has NaN or infinity", where=where, advice="make the vectors again")
    return array.astype(np.float64)


def against_vectors(
    a: Side,
    b: str,
    vectors: np.ndarray,
    texts: Sequence[str],
    *,
    tolerance: float,
    max_length: int | None,
    alone: np.ndarray | None = None,
) -> Parity:
    """Compare a side's vectors with those of another that gives nothing else; where they differ, say why.

    Args:
        a: the side that is right; a checkpoint for a diagnosis.
        b: the other side's name.
        vectors: its vectors, one for each text.
        texts: the texts.
        tolerance: of a relative difference.
        max_length: cut texts to this many tokens.
        alone: the vectors of texts that were sent one by one, if `vectors` are of a batch.

    Raises:
        InputError: the vectors don't fit, or the side has no tokenizer.
    """
    ours, tokens = _own_vectors(a, texts, max_length)
    theirs = check_vectors(vectors, len(texts), ours.shape[1], b)
    checks = [_apart("vector", "the text's vector", ours, theirs, tolerance)]
    notes, diagnosis = list(a.notes), None
    if not checks[0].agrees and isinstance(a, CheckpointSide):
        eps = float(np.finfo(np.asarray(vectors).dtype).eps)
        diagnosis = diagnose(Replay(a.model, texts, max_length), theirs, eps=0.0 if eps < 1e-6 else eps)
    elif not checks[0].agrees:
        notes.append("only a checkpoint as the first side can say what the other does otherwise")
    if alone is not None:
        single = check_vectors(alone, len(texts), ours.shape[1], b)
        checks.insert(0, _apart("batch", "a text's vector alone and in a batch", single, theirs, tolerance))
    names: dict[str, Any] = {"model": f"{a.name} and {b}", "a": called(a.name), "b": b, "texts": tuple(texts)}
    cost = cost_of(ours, theirs)
    return Parity(**names, checks=tuple(checks), notes=tuple(notes), tokens=tokens, cost=cost, diagnosis=diagnosis)


def _own_vectors(
    a: Side, texts: Sequence[str], max_length: int | None
) -> tuple[Float[np.ndarray, "texts d"], tuple[tuple[str, ...], ...]]:
    """The first side's vectors in fp64, and the tokens of each text.

    Raises:
        InputError: the side has no tokenizer or no pooling.
    """
    encoded = [text for text in (a.encode(text, max_length) for text in texts) if text is not None]
    if a.pooling is None or len(encoded) < len(texts):
        raise InputError(
            f"{called(a.name)} doesn't say how it cuts texts and pools tokens",
            where="parity",
            advice="pass the checkpoint as the first side, or a SentenceTransformer",
        )
    vectors = np.stack([a.read(text, a.pooling).vector for text in encoded])
    return vectors.astype(np.float64), tuple(text.tokens for text in encoded)


def _apart(name: str, compared: str, a: np.ndarray, b: np.ndarray, tolerance: float) -> Check:
    """The largest relative difference of two sets of vectors."""
    differences = relative(a, b)
    worst = int(differences.argmax())
    return Check(name, compared, float(differences[worst]), tolerance, REASON, text=worst)


def cost_of(a: Vectors, b: Vectors) -> Cost:
    """Compare the vectors of the same texts in two sides."""
    wide = [vectors.astype(np.float64) for vectors in (a, b)]
    with np.errstate(divide="ignore", invalid="ignore"):
        unit_a, unit_b = (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) for vectors in wide)
    cosines = np.einsum("nd,nd->n", unit_a, unit_b)
    if len(a) < 3:
        return Cost(cosines, float("nan"), 0)
    similar = [unit @ unit.T for unit in (unit_a, unit_b)]
    pairs = np.triu_indices(len(a), 1)
    nearest = [np.where(np.eye(len(a), dtype=bool), -np.inf, cells).argmax(-1) for cells in similar]
    return Cost(cosines, rank_correlation(*(cells[pairs] for cells in similar)), int((nearest[0] != nearest[1]).sum()))


def rank_correlation(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]) -> float:
    """Spearman's: Pearson's of ranks, equal numbers sharing the mean of theirs; NaN if one is constant."""
    first, other = (ranks(values) - (len(values) - 1) / 2 for values in (a, b))
    with np.errstate(invalid="ignore", divide="ignore"):
        return float((first * other).sum() / np.sqrt((first * first).sum() * (other * other).sum()))


def ranks(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The rank of each number from 0; equal numbers share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + ends - 1) / 2)[which]
