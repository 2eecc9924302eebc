"""The compiled way: the blocks of scores of the block way, but three passes over each row instead of a dozen.

numba compiles the passes for the machine's processor when they run for the first time; it is an optional extra,
`headscope[fast]`. Without it they are plain Python, which is only good for tests.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from headscope import kernels
from headscope.kernels import ScoreBlock, score_blocks
from headscope.statistics.block_way import FORBIDDEN
from headscope.statistics.catalog import CELLS
from headscope.statistics.layer import Layer, Sums

if TYPE_CHECKING:
    from jaxtyping import Float, Int

Function = TypeVar("Function", bound=Callable[..., Any])

INSTALLED = importlib.util.find_spec("numba") is not None

BLOCK_CELLS, BLOCK_ROWS = 1 << 18, 256
"""Of the blocks of scores: 1 MiB and few heads, as each block is overwritten in place; see kernels.score_blocks."""

CHUNK = 128
"""Keys that are summed in fp32. Chunks are summed in fp64, so that small weights aren't lost beside a large one."""

TOTAL, ENTROPY, SQUARES, OFFSET, DISTANCE, SUMS = range(6)
"""Columns of the sums of a row."""

LEAST, LOWEST = np.float32(-126), np.float32(-127)
"""Exponents of the smallest normal fp32, below which powers are 0, and of what stands for all below."""

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
BIAS, MANTISSA = np.int32(127), np.int32(23)
"""Of the bits of an fp32: what is added to the exponent, and how far left it stands."""

POWERS = tuple(
    np.float32(term)
    for term in (
        *(1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3),
        *(5.550332471162809e-2, 2.402264791363012e-1, 6.931472028550421e-1),
    )
)
"""(2^x - 1) / x from -0.5 to 0.5, the highest power first (Moshier's Cephes, exp2f): within 2e-7 of 2^x."""

P5, P4, P3, P2, P1, P0 = POWERS


def _compiled(function: Function) -> Function:
    """The function compiled by numba, if that is installed. Sums may be reassociated, so that they are vectorised."""
    if not INSTALLED:
        return function
    import numba

    flags = {"reassoc", "contract", "nsz", "nnan"}
    return numba.njit(function, nogil=True, cache=True, error_model="numpy", fastmath=flags)


@_compiled
def _raised(row: Any, gaps: Any, highest: Any) -> Any:
    """Replace scores s by p = 2^(s - highest); the sums of p, p (s - highest), p^2, p gap and p |gap|."""
    total, entropy, squares, offset, distance = ZERO, ZERO, ZERO, ZERO, ZERO
    for key in range(len(row)):
        shifted = row[key] - highest
        shifted = shifted if shifted > LOWEST else LOWEST
        whole = np.floor(shifted + HALF)
        part = shifted - whole
        power = P5
        power = power * part + P4
        power = power * part + P3
        power = power * part + P2
        power = power * part + P1
        power = power * part + P0
        power = power * part + ONE
        power = power * np.int32((np.int32(whole) + BIAS) << MANTISSA).view(np.float32)
        power = power if shifted > LEAST else ZERO
        row[key] = power
        gap = power * gaps[key]
        total += power
        entropy += power * shifted
        squares += power * power
        offset += gap
        distance += abs(gap)
    return total, entropy, squares, offset, distance


@_compiled
def _dot(first: Any, other: Any) -> Any:
    total = ZERO
    for key in range(len(first)):
        total += first[key] * other[key]
    return total


def usable(layer: Layer) -> bool:
    """Return True if the compiled way gives this layer's sums: fp32 on a CPU, without terms, all numbers finite."""
    return (
        layer.q.device.type == "cpu"
        and layer.q.dtype == torch.float32
        and layer.terms.nothing
        and math.isfinite(float(layer.q.sum() + layer.k.sum()))  # a sixth of the time of isfinite()
    )


def sums_by_compiled_passes(layer: Layer, names: Collection[str]) -> Sums:
    """Compute the sums of `block_way.sums_by_blocks`; the formulas are there.

    Heads are shared out among as many threads as torch uses. Each row is summed by itself, so their number changes no
    bit of the sums, other than through the matrix product.
    """
    batch, heads, queries, _ = layer.q.shape
    keys = layer.k.shape[2]
    columns = layer.columns[..., 2:].mT.contiguous()
    count = columns.shape[-2]
    shared = heads if columns.shape[1] == 1 else 1  # heads that have the same columns
    if len(columns) < batch:
        columns = columns.expand(batch, -1, -1, -1)
    weighing = columns.reshape(columns.shape[0] * columns.shape[1], count, keys).numpy()
    sums = np.zeros((batch * heads, queries, SUMS))
    mixed = np.zeros((batch * heads, queries, count), dtype=np.float32)
    cells = np.zeros((batch * heads, queries, 1 + len(CELLS)), dtype=np.float32)
    offsets = np.array([layer.at + offset for offset in CELLS.values()], dtype=np.int64)
    ramp = np.arange(-(queries - 1) - layer.at, keys - layer.at, dtype=np.float32)
    threads = torch.get_num_threads()
    for block in score_blocks(
        layer.q,
        layer.k,
        scale=layer.scale / math.log(2),
        mask=layer.rule,
        terms=layer.terms,
        hidden=FORBIDDEN,
        cells=BLOCK_CELLS,
        least=min(BLOCK_ROWS, max(kernels.BLOCK_ROWS, BLOCK_CELLS // max(1, keys))),
    ):
        heads_here = block.heads.stop - block.heads.start
        many = min(threads, heads_here)
        bounds = [heads_here * at // many for at in range(many + 1)]
        highest = block.scores.amax(-1).numpy()  # a tenth of the time of a loop, which numba doesn't vectorise
        share = partial(_take_heads, block, highest, weighing, shared, ramp, offsets, (sums, mixed, cells))
        if many == 1:
            share(0, heads_here)
        else:
            list(_pool(many).map(share, bounds[:-1], bounds[1:]))
    return _named(layer, names, *(torch.from_numpy(array) for array in (sums, mixed, cells)))


def _take_heads(
    block: ScoreBlock,
    highest: Float[np.ndarray, "heads rows"],
    weighing: Float[np.ndarray, "groups columns keys"],
    shared: int,
    ramp: Float[np.ndarray, " gaps"],
    offsets: Int[np.ndarray, " cells"],
    out: tuple[np.ndarray, np.ndarray, np.ndarray],
    first: int,
    last: int,
) -> None:
    """The sums of the block's heads from `first` to `last`; the other arguments are those of `_take`."""
    at = slice(block.heads.start + first, block.heads.start + last)
    scores = block.scores[first:last].numpy()
    place = (block.rows.start, block.keys.start)
    taken = (out[0][at], out[1][at], out[2][at])
    _take(scores, highest[first:last], weighing, at.start, shared, place, ramp, offsets, taken)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="headscope-statistics")


def _named(
    layer: Layer,
    names: Collection[str],
    sums: Float[torch.Tensor, "all queries sums"],
    mixed: Float[torch.Tensor, "all queries columns"],
    cells: Float[torch.Tensor, "all queries cells"],
) -> Sums:
    """The sums by name, as the block way has them."""
    shape = layer.q.shape[:3]
    total = sums[..., TOTAL]
    total = torch.where(total > 0, total, 1)  # a row without keys is in no block; 1 keeps it finite
    means = {
        "entropy": ((total.log2() - sums[..., ENTROPY] / total) * math.log(2)).clamp_min_(0),
        "effective_tokens": total.square() / sums[..., SQUARES],
        "strongest": total.reciprocal(),
        "offset": sums[..., OFFSET] / total,
        "distance": sums[..., DISTANCE] / total,
        **{name: cells[..., at] / total for at, name in enumerate(("first", *CELLS))},
    }
    wanted = {*names} - ({"distance"} if not layer.two_sided else set())
    wanted |= {"entropy"} if "normalised_entropy" in names else set()
    wanted |= {"offset"} if "distance" in names else set()
    kept = {name: row.to(layer.q.dtype).view(shape) for name, row in means.items() if name in wanted}
    return Sums(kept, (mixed / total[..., None]).to(layer.q.dtype).view(*shape, -1))


@_compiled
def _take(
    scores: Any,
    highest: Any,
    weighing: Any,
    head: int,
    shared: int,
    place: tuple[int, int],
    ramp: Any,
    offsets: Any,
    out: tuple[Any, Any, Any],
) -> None:
    """The sums of a block of scores in units of log 2; overwrites the scores by their powers.

    Args:
        scores: (heads, rows, keys).
        highest: (heads, rows), the largest score of each row.
        weighing: (groups, columns, keys of the layer).
        head: which of the layer's heads is the first.
        shared: how many heads share a group of columns.
        place: the first row, and the first key.
        ramp: the gap from query i to key j is at queries - 1 - i + j.
        offsets: of CELLS, from a row to a key.
        out: (heads, queries, …), sums, mixed and cells as above.
    """
    sums, mixed, cells = out
    first_row, first_key = place
    keys = scores.shape[2]
    for one in range(scores.shape[0]):
        group = (head + one) // shared
        for row in range(scores.shape[1]):
            powers = scores[one, row]
            query = first_row + row
            gaps = ramp[sums.shape[1] - 1 - query + first_key :]
            for low in range(0, keys, CHUNK):
                total, entropy, squares, offset, distance = _raised(
                    powers[low : low + CHUNK], gaps[low:], highest[one, row]
                )
                sums[one, query, TOTAL] += total
                sums[one, query, ENTROPY] += entropy
                sums[one, query, SQUARES] += squares
                sums[one, query, OFFSET] += offset
                sums[one, query, DISTANCE] += distance
            for column in range(weighing.shape[1]):
                mixed[one, query, column] = _dot(powers, weighing[group, column, first_key : first_key + keys])
            if first_key == 0:
                cells[one, query, 0] = powers[0]
            for cell in range(len(offsets)):
                key = query + offsets[cell] - first_key
                if 0 <= key < keys:
                    cells[one, query, 1 + cell] = powers[key]
