"""Statistics of heads: one function for a layer, whoever asks, the table of a whole trace, and the patterns in it.

A survey measures batches of live layers: `on_live.py` prepares their tokens once for all layers. The page, which needs
more of each block, calls `reference.measured_blocks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from headscope.attention.terms import Terms
from headscope.errors import HeadscopeError, InputError, require
from headscope.heads.catalog import CATALOG, chosen, need_values
from headscope.heads.kinds import MEASURES, Pattern
from headscope.heads.reference import LayerArrays, Roles, measured_blocks, over_queries, roles_of
from headscope.results.head_values import HeadValues
from headscope.results.table import HeadTable, in_columns
from headscope.traces import broken_rows, is_broken, layer_W_O, refuse_swapped
from headscope.traces.views import kept_values

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.traces import Trace

ENGINES = ("numpy", "torch")


def measure(
    layer: LayerArrays,
    roles: Roles,
    names: Iterable[str] | None = None,
    *,
    engine: str = "numpy",
    dtype: type[np.floating] | None = np.float64,
) -> dict[str, Float[np.ndarray, "heads queries"]]:
    """Statistics of every query of a layer's heads, (heads, queries) each; NaN where a query has none.

    Args:
        layer: arrays of NumPy.
        roles: of the tokens.
        names: of the statistics; None for all, but for the norm-weighted ones if v or W_O is missing.
        engine: see `statistics`.
        dtype: the precision of engine="numpy"; None for that of q and k.

    Raises:
        InputError: there is no such statistic, it needs v and W_O, or the mask has a bias, which torch doesn't support.
        MissingExtraError: engine="torch" without PyTorch.
    """
    if engine == "numpy":
        names = chosen(names, values=layer.v is not None and layer.W_O is not None)
        parts = [values for _, values in measured_blocks(layer, roles, names, dtype=dtype)]
        if not parts:
            return {name: np.zeros(layer.q.shape[:2]) for name in names}
        return {name: np.concatenate([part[name] for part in parts], axis=-1) for name in names}
    require("torch", "torch", where="trace.statistics, engine='torch'", otherwise="use engine='numpy'")
    import torch

    from headscope.heads.fast import fast_statistics

    def tensor(array: Float[np.ndarray, "..."]) -> torch.Tensor:
        """Read-only arrays of a file are copied, because torch has no read-only tensors."""
        return torch.from_numpy(array if array.flags.writeable else array.copy())

    q, k, v, W_O = (None if part is None else tensor(part) for part in (layer.q, layer.k, layer.v, layer.W_O))
    assert isinstance(layer.terms, Terms)
    tensors = replace(layer, q=q, k=k, v=v, W_O=W_O, terms=layer.terms.mapped(tensor))
    found = fast_statistics(tensors, roles, names)
    return {name: values.numpy() for name, values in found.items()}


def statistics(
    trace: Trace,
    names: str | Iterable[str] | None = None,
    *,
    per_query: bool = False,
    special: bool = True,
    engine: str = "numpy",
) -> HeadTable:
    """The table of a trace: see `Trace.statistics`. A mean hides no query that is not a number: it is NaN."""
    if engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}", where="engine", advice=f"use one of {', '.join(ENGINES)}")
    wanted = chosen(names)
    left_out = {}
    if need_values(wanted):
        try:
            require_values(trace)
        except HeadscopeError as error:
            if names is not None:
                raise
            left_out = dict.fromkeys(need_values(wanted), error.found)
            wanted = chosen(None, values=False)
    roles = roles_of(trace)
    layers = []
    for number, record in zip(trace.numbers, trace.layers, strict=True):
        W_O = layer_W_O(trace, number) if need_values(wanted) else None
        of_layer = measure(LayerArrays.of(record, W_O), roles, wanted, engine=engine)
        values = np.stack([of_layer[name] for name in wanted], axis=1).astype(np.float32)  # (heads, names, queries)
        broken = broken_rows(record)
        if not special:
            values[..., roles.query_special] = np.nan
        if per_query:
            values = np.where(broken[:, None], np.float32(np.nan), values)
        else:
            values = over_queries(values, np.float64).astype(np.float32)
            values[broken.any(-1)] = np.nan  # a mean over the other queries would hide the problem
        layers.append(values)
    heads = tuple(trace.head_numbers(number) for number in trace.numbers)
    table = in_columns(layers, heads)
    dims = ("layers", "heads", "queries") if per_query else ("layers", "heads")
    return HeadTable(
        {name: HeadValues.of(CATALOG[name], table[:, :, at], dims) for at, name in enumerate(wanted)},
        layers=trace.numbers,
        heads=heads,
        along={"queries": range(len(trace.queries))} if per_query else {},
        left_out=left_out,
        broken=frozenset(trace.broken),
        source="statistics",
    )


def require_values(trace: Trace) -> None:
    """Check that the trace has what the norm-weighted statistics need.

    Raises:
        TraceError: it has no values, or no model, or a head wrote something else than its weights and values give.
    """
    refuse_swapped(trace)
    for number, record in zip(trace.numbers, trace.layers, strict=True):
        kept_values(record, f"layer {number}")
    layer_W_O(trace, trace.numbers[0])


def all_patterns(trace: Trace, layers: Sequence[int] | None = None) -> list[Pattern]:
    """The patterns of the trace's heads, of all layers or those with these numbers, layer by layer."""
    roles = roles_of(trace)
    patterns: list[Pattern] = []
    for layer in trace.numbers if layers is None else layers:
        record = trace.layers[trace.numbers.index(layer)]
        means = {
            name: over_queries(values)
            for name, values in measure(LayerArrays.of(record), roles, MEASURES, dtype=None).items()
        }
        broken = is_broken(record)
        columns = {name: np.where(broken, np.nan, values) for name, values in means.items()}
        for at, head in enumerate(trace.head_numbers(layer)):
            patterns.append(Pattern.of(layer, head, {name: float(values[at]) for name, values in columns.items()}))
    return patterns
