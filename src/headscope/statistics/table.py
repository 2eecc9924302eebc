"""The statistics of all heads of a trace, as a table that knows its axes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from headscope._trace import Named, broken_rows
from headscope.errors import HeadscopeError, InputError, MissingExtraError, TraceError
from headscope.statistics.catalog import CATALOG, chosen, need_values
from headscope.statistics.reference import reference_statistics
from headscope.statistics.roles import Roles, roles_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace import LayerRecord, Trace

ENGINES = ("numpy", "torch")


class Statistics(Mapping[str, Named]):
    """Statistic name -> (layers, heads), or (layers, heads, queries) per query, in fp32.

    Attributes:
        layers: the number of each layer in the model.
        heads: the numbers of each layer's heads. If layers differ in heads, the missing ones are NaN.
        left_out: statistic that this trace lacks the data for -> the reason.
        broken: (layer, head) of heads whose weights are not numbers; their statistics are NaN.
    """

    def __init__(
        self,
        values: Mapping[str, Named],
        *,
        layers: tuple[int, ...],
        heads: tuple[tuple[int, ...], ...],
        left_out: Mapping[str, str],
        broken: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self._values = dict(values)
        self.layers = layers
        self.heads = heads
        self.left_out = dict(left_out)
        self.broken = broken

    def __getitem__(self, name: str) -> Named:
        if name in self._values:
            return self._values[name]
        reason = self.left_out.get(name, f"it was not requested; the table has {', '.join(self._values)}")
        raise MissingStatisticError(
            f"the table has no {name!r}: {reason}",
            where="trace.statistics()",
            advice=f"request it by name: trace.statistics({name!r})" if name in CATALOG else "see docs/statistics.md",
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def rows(self) -> list[dict[str, float]]:
        """A record per head, or per head and query, for `pandas.DataFrame(statistics.rows())`, CSV or JSON lines.

        Layers and heads have their numbers in the model.
        """
        records: list[dict[str, float]] = []
        for at, (layer, heads) in enumerate(zip(self.layers, self.heads, strict=True)):
            for place, head in enumerate(heads):
                of_head = {name: named.array[at, place] for name, named in self._values.items()}
                first = next(iter(of_head.values()))
                if first.ndim == 0:
                    numbers = {name: float(value) for name, value in of_head.items()}
                    records.append({"layer": layer, "head": head, **numbers})
                    continue
                for query in range(len(first)):
                    numbers = {name: float(values[query]) for name, values in of_head.items()}
                    records.append({"layer": layer, "head": head, "query": query, **numbers})
        return records

    def __repr__(self) -> str:
        lines = [f"statistics of {len(self.layers)} layers, mean and range over heads"]
        lines += [spread_line(name, named) for name, named in self._values.items()]
        lines += [f"without {name}: {reason}" for name, reason in self.left_out.items()]
        if self.broken:
            lines.append(f"{len(self.broken)} heads are excluded because their weights are NaN (see .broken)")
        return "\n".join(lines)


def spread_line(name: str, named: Named) -> str:
    """A statistic in one line: its name, mean and range over heads, and meaning."""
    seen = named.array[np.isfinite(named.array)]
    text = f"{seen.mean():>10.4g}  {seen.min():.4g} to {seen.max():.4g}" if len(seen) else f"{'nothing':>10}"
    return f"{name:<20}{text}  {CATALOG[name].meaning}"


class MissingStatisticError(InputError, KeyError):
    """The table lacks a statistic. Also a KeyError, as mappings require."""

    __str__ = InputError.__str__


def statistics(
    trace: Trace,
    names: str | Iterable[str] | None = None,
    *,
    per_query: bool = False,
    special: bool = True,
    engine: str = "numpy",
) -> Statistics:
    """Statistics of where every head looks. Definitions, formulas and sources are in docs/statistics.md.

    Args:
        trace: to measure.
        names: of the statistics; None for all that the trace has the data for.
        per_query: one number per query instead of the mean over queries.
        special: include queries that the tokenizer added. As keys they are always included; padding never is.
        engine: `numpy` computes the weights in blocks of queries, in fp64; `torch` computes the same without building
            them, which is faster on long texts and requires PyTorch.

    Raises:
        InputError: there is no such statistic or engine.
        TraceError: norm-weighted statistics were requested by name, and the trace has no values or no model.
        UnsupportedError: the same, and the place of W_O in this live model is unknown.
        MissingExtraError: engine="torch" without PyTorch.
    """
    if engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}", where="engine", advice=f"use one of {', '.join(ENGINES)}")
    wanted = chosen(names)
    left_out = {}
    if need_values(wanted):
        try:
            output_weights(trace)
        except HeadscopeError as error:
            if names is not None:
                raise
            left_out = dict.fromkeys(need_values(wanted), error.found)
            wanted = chosen(None, values=False)
    roles = roles_of(trace)
    tall = max(len(record.q) for record in trace.layers)
    table = np.full((len(wanted), len(trace.layers), tall, len(trace.queries)), np.nan, dtype=np.float32)
    for at, (number, record) in enumerate(zip(trace.numbers, trace.layers, strict=True)):
        W_O = layer_W_O(trace, number) if need_values(wanted) else None
        values = _of_layer(record, roles, W_O, wanted, engine)
        table[:, at, : len(record.q)] = [values[name] for name in wanted]
    if not special:
        table[..., roles.query_special] = np.nan
    dims: tuple[str, ...] = ("layers", "heads", "queries")
    broken = np.zeros(table.shape[1:], dtype=bool)
    for at, record in enumerate(trace.layers):
        broken[at, : len(record.q)] = broken_rows(record)
    if per_query:
        table[:, broken] = np.nan
    else:
        table, dims = over_queries(table), dims[:2]
        table[:, broken.any(-1)] = np.nan  # a mean over the other queries would hide the problem
    return Statistics(
        {name: Named(name, dims, values) for name, values in zip(wanted, table, strict=True)},
        layers=trace.numbers,
        heads=tuple(trace.head_numbers(number) for number in trace.numbers),
        left_out=left_out,
        broken=trace.broken,
    )


def over_queries(values: Float[np.ndarray, "... queries"]) -> Float[np.ndarray, "..."]:
    """The mean over the queries that have a value; NaN if none has."""
    defined = ~np.isnan(values)
    count = defined.sum(-1)
    total = np.where(defined, values, 0).sum(-1, dtype=np.float64)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)


def output_weights(trace: Trace) -> None:
    """Check that the trace has what the norm-weighted statistics need.

    Raises:
        TraceError: it has no values, or no model.
    """
    if any(record.v is None for record in trace.layers):
        raise TraceError(
            "the norm-weighted statistics need the values V, which the trace doesn't have",
            where="trace",
            advice="make the trace again with values",
        )
    layer_W_O(trace, trace.numbers[0])


def layer_W_O(trace: Trace, layer: int) -> Float[np.ndarray, "heads d_value d_model"]:
    """W_O of each head in the trace, (heads, d_value, d_model); 0 for silenced heads, which write nothing.

    Raises:
        TraceError: the trace has no model.
    """
    if trace.source is None:
        raise TraceError(
            "the norm-weighted statistics need W_O, and the trace has no model to read it from",
            where=f"layer {layer}",
            advice="load the trace with hs.load(file, model=hs.open(…))",
        )
    heads = trace.head_numbers(layer)
    weights = {head: np.asarray(trace.source.W_O(layer, head), dtype=np.float32) for head in heads}
    silenced = {head for head in heads if (layer, head) in trace.ablated}
    return np.stack([np.zeros_like(weights[head]) if head in silenced else weights[head] for head in heads])


def _of_layer(
    record: LayerRecord,
    roles: Roles,
    W_O: Float[np.ndarray, "heads d_value d_model"] | None,
    names: tuple[str, ...],
    engine: str,
) -> dict[str, Float[np.ndarray, "heads queries"]]:
    """Each statistic of a layer, (heads, queries)."""
    v = record.v if W_O is not None else None
    if engine == "numpy":
        return reference_statistics(
            record.q,
            record.k,
            v,
            scale=record.scale,
            roles=roles,
            mask=record.mask,
            terms=record.terms,
            W_O=W_O,
            names=names,
        )
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError(
            "engine='torch' requires PyTorch, which is not installed",
            where="trace.statistics",
            advice="pip install 'headscope[torch]', or use engine='numpy'",
        )
    from headscope.statistics.fast import fast_statistics, tensor

    per_query = fast_statistics(
        tensor(record.q),
        tensor(record.k),
        None if v is None else tensor(v),
        scale=record.scale,
        roles=roles,
        mask=record.mask,
        terms=record.terms.mapped(tensor),
        W_O=None if W_O is None else tensor(W_O),
        names=names,
    )
    return {name: values.numpy() for name, values in per_query.items()}
