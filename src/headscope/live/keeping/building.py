"""The consumer that builds traces: it copies Q, K and V row by row, without padding, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from headscope.attention.kernels import autocast_now
from headscope.attention.patterns import recorded, swap_notes
from headscope.attention.terms import RELATIVE, TABLES, Terms
from headscope.checkpoint.json_text import few
from headscope.errors import InputError, warn
from headscope.live.calls import Call, Consumer, Forward
from headscope.live.checking import excess
from headscope.live.genuine import switches_of
from headscope.live.hooks import drawn_next
from headscope.live.keeping.cached_sequences import CachedSequences
from headscope.live.keeping.contents import Contents, Weights
from headscope.live.keeping.copies import (
    KINDS,
    Copies,
    Group,
    LayerCopy,
    Room,
    Series,
    outputs_of,
    products,
    records_of,
)
from headscope.live.keeping.projections import Output
from headscope.live.keeping.source import CapturedModel
from headscope.live.names.lookups import is_stateless
from headscope.live.names.naming import Naming
from headscope.live.plan.classes import attention_configs
from headscope.live.plan.stacks import Stack
from headscope.traces import Cut, Trace

MOST_NAMES = 4
"""Maximum number of layers that a note names."""
IN_TRAINING = "the model is in training mode, and {} drops numbers at random"
"""Note of a pass whose numbers are other ones each time."""


@dataclass(eq=False)
class TraceBuilder(Consumer):
    """Copies the calls of each forward pass; `build` turns the copies into traces.

    Attributes:
        model, name: the model and its name.
        naming: names the tokens.
        layers: numbers of the layers that are kept; None for all.
        heads: numbers of the heads in each layer; None for all.
        values: True to keep V.
        dtype: float32 or float16.
        device: where the copies stay until the traces are built.
        keeps_padding: True to keep padding.
        finished: the finished forward passes, each with its copies.
        expected: stack -> number of its attention modules.
    """

    model: nn.Module
    name: str
    naming: Naming
    layers: frozenset[int] | None
    heads: tuple[int, ...] | None
    values: bool
    dtype: torch.dtype
    device: torch.device
    keeps_padding: bool
    follows = True
    finished: list[tuple[Forward, list[Group]]] = field(default_factory=list)
    seen_layers: set[int] = field(default_factory=set)
    sequences: CachedSequences = field(default_factory=CachedSequences)
    expected: Mapping[Stack, int] = field(default_factory=dict)
    _open: dict[int, Copies] = field(default_factory=dict)
    _weights: Weights | None = None
    _outputs: dict[tuple[str, ...], Output] = field(default_factory=dict)

    def begin(self, forward: Forward) -> None:
        """Start a forward pass."""
        self._open[forward.number] = Copies()
        forward.autocast, forward.drawn = autocast_now(KINDS), drawn_next(forward.module)
        named = list(forward.module.named_modules())
        modules = [module for _, module in named]
        forward.dropped = _dropping(named)
        if forward.dropped:
            warn(f"{IN_TRAINING.format(forward.dropped)}: call model.eval() before, unless that is meant")
        configs = attention_configs(modules)
        forward.implementations = {id(x): x._attn_implementation_internal or "eager" for x in configs}
        if is_stateless((forward.args, forward.kwargs)):
            forward.contents = Contents(forward.args, forward.kwargs)
            forward.contents.keep()
        weights, forward.switches = Weights(modules), switches_of(modules)
        forward.weights = self._weights = self._weights if self._weights and weights.same(self._weights) else weights

    def drop(self, forward: Forward) -> None:
        """Discard a forward pass that raised an error."""
        self._open.pop(forward.number, None)

    def end(self, forward: Forward) -> None:
        """Finish a forward pass.

        Raises:
            UnsupportedError: a module's output is not softmax(scale Q K^T + mask) V.
        """
        copies = self._open.pop(forward.number)
        copies.finish()
        groups = list(copies.groups.values())
        step = any(queries == 1 < keys for _, queries, keys in (group.sizes for group in groups))
        for place, output in forward.projections.items():  # a step of generate() follows a pass with the same weights
            known = self._outputs.get(output.paths) if step else None
            self._outputs[output.paths] = forward.projections[place] = known or output.marked(self.model)
        for group in groups:
            group.outputs = [outputs_of(forward, group, row) for row in range(len(group.rows))]
        for series in dict.fromkeys(group.series for group in groups):
            self._share(forward, [group for group in groups if group.series == series])
        if groups:
            self.finished.append((forward, groups))

    def wants(self, stack: Stack, layer: int) -> bool:
        """Return True if the layer is selected."""
        self.seen_layers.add(layer)
        return self.layers is None or layer in self.layers

    def take(self, forward: Forward, call: Call) -> None:
        """Copy one layer.

        Raises:
            InputError: a selected head doesn't exist.
        """
        if not call.context.numel() or not call.k.numel():
            return  # no rows, no queries or no keys: nothing attended
        if self.keeps_padding:
            call = replace(call, rules=call.rules.uncut(), beside=call.beside and call.beside.uncut())
        batch, heads, queries, _ = call.q.shape
        chosen = self._heads(call, heads)
        copies = self._open[forward.number]
        key: tuple[Any, ...] = (call.stack, call.turn, batch, queries, call.k.shape[2])
        groups = copies.groups
        while key in groups and not groups[key].holds(call):
            key = (*key, "other padding")
        if key not in groups:
            _refuse_empty_rows(forward, call)
            groups[key] = Group(
                call.stack,
                call.turn,
                (batch, queries, call.k.shape[2]),
                call.own,
                call.extra_keys,
                [[] for _ in range(batch)],
                [(call.beside or call.rules).row(row).queries for row in range(batch)],
                [call.rules.row(row).keys for row in range(batch)],
                self._rooms(call),
            )
        group = groups[key]
        with torch.autocast(call.q.device.type, enabled=False):
            layers = [self._copy(group, call, row, chosen, copies) for row in range(batch)]
            # Every query of a call that is not proven has been compared before it was delivered.
            if call.proven and (times := excess(call)) is not None:
                kind = type(call.module).__name__
                copies.errors.append((times, (kind, f"{call.path or kind}, layer {call.layer}")))
        for row, layer in zip(group.rows, layers, strict=True):
            row.append(layer)

    def _share(self, forward: Forward, groups: list[Group]) -> None:
        """Store the keys and values of one stack together with those of earlier forward passes."""
        for row in range(max(len(group.rows) for group in groups)):
            layers = [layer for group in groups if row < len(group.rows) for layer in group.rows[row]]
            layers.sort(key=lambda layer: layer.call["number"])  # windows may group the layers differently in each pass
            tensors = {
                (at, name): part
                for at, layer in enumerate(layers)
                for name in ("k", "v")
                if isinstance(part := layer.tensors[name], torch.Tensor)
            }
            q, group = layers[0].tensors["q"], groups[0]
            assert isinstance(q, torch.Tensor)
            # Keys that are not tokens (bias_k) come last; a module that has them has no cache, so all its keys are new.
            fresh = 0 if not group.own else tensors[0, "k"].shape[1] if group.extras else q.shape[1]
            for (at, name), span in self.sequences.keep(group.series, row, tensors, fresh, forward, group).items():
                layers[at].tensors[name] = span

    def _heads(self, call: Call, heads: int) -> list[int] | None:
        if self.heads is None:
            return None
        for head in self.heads:
            if not -heads <= head < heads:
                raise InputError(
                    f"there is no head {head}: layer {call.layer} has {heads} heads",
                    where=call.path,
                    advice=f"heads count from 0, so the last one is {heads - 1}",
                )
        return sorted({head % heads for head in self.heads})

    def _copy(self, group: Group, call: Call, row: int, chosen: list[int] | None, copies: Copies) -> LayerCopy:
        rule = call.rules.row(row)
        at_queries, at_keys = group.places(row, call.q.device)
        heads, kv_heads = call.q.shape[1], call.k.shape[1]
        kv_chosen = None if chosen is None else [head * kv_heads // heads for head in chosen]
        rooms = group.rooms[row]

        def copy(name: str, numbers: list[int] | None, places: torch.Tensor | None) -> torch.Tensor:
            part = getattr(call, name)[row]
            part = part if numbers is None else part[numbers]
            part = part if places is None else part.index_select(1, places)
            room = rooms.get(name)
            return copies.copy(part, self.dtype, self.device) if room is None else room.copy(part, self.dtype)

        return LayerCopy(
            call={
                "scale": call.scale,
                "mask": group.mask(row, rule),
                "terms": self._terms(group, call, row, chosen),
                "stage": call.stage,
                "name": call.path or type(call.module).__name__,
                "number": call.layer,
                "numbers": None if chosen is None else tuple(chosen),
            },
            tensors={
                "q": copy("q", chosen, at_queries),
                "k": copy("k", kv_chosen, at_keys),
                "v": copy("v", kv_chosen, at_keys) if self.values else None,
            },
            products=products(call, row, chosen, at_queries, copies),
            silenced=call.silenced,
            followed=call.followed,
        )

    def _rooms(self, call: Call) -> list[dict[str, Room]]:
        """For each row, the room of its queries, and that of its keys and values, which a growing cache may replace.

        There is none on a GPU, and none for a pass with cached keys, of which only the new ones stay.
        """
        if self.device.type != "cpu" or call.q.device.type != "cpu" or call.k.shape[2] > call.q.shape[2]:
            return [{} for _ in call.q]
        layers = self.expected.get(call.stack, 1)
        layers = layers if self.layers is None else min(layers, len(self.layers))
        rooms = [(Room(layers), Room(2 * layers if self.values else layers)) for _ in call.q]
        return [{"q": queries, "k": others, "v": others} for queries, others in rooms]

    def _terms(self, group: Group, call: Call, row: int, chosen: list[int] | None) -> Terms:
        """A copy of the terms over the positions that are kept, with the tables of the chosen heads."""
        terms = call.terms(row)
        if terms.nothing:
            return terms
        key = (row, id(call.rules.row(row)))
        shared = call.layer_terms.nothing and chosen is None
        if shared and key in group.terms:
            return group.terms[key]
        spans = [
            (0, size) if kept is None else (int(np.argmax(kept)), int(kept.sum()))
            for kept, size in zip((group.queries_kept[row], group.keys_kept[row]), group.sizes[1:], strict=True)
        ]
        part = terms.window(*spans[0], *spans[1], group.sizes[1:])
        part = part if chosen is None else part.of_heads(chosen)

        def copy(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda table: table.detach().to(self.device, dtype, copy=True)

        plain = [name for name in TABLES if name not in RELATIVE]
        kept_terms = part.mapped(copy(torch.float32), plain).mapped(copy(self.dtype), RELATIVE)
        if shared:
            group.terms[key] = kept_terms
        return kept_terms

    def build(self, forward: Forward, groups: list[Group]) -> list[Trace]:
        """The traces of one forward pass, ordered by row and, within a row, by stack; none of queries all padding."""
        rows = [(row, group) for row in range(max(len(group.rows) for group in groups)) for group in groups]
        rows = [(row, group) for row, group in rows if row < len(group.rows)]
        padding = {(row, group.sequences) for row, group in rows if group.is_padding(row)}
        return [self._trace(forward, group, row) for row, group in rows if (row, group.sequences) not in padding]

    def check_selection(self) -> None:
        """Check that every selected layer ran.

        Raises:
            InputError: a selected layer doesn't exist.
        """
        missing = sorted((self.layers or frozenset()) - self.seen_layers)
        if missing and self.seen_layers:
            raise InputError(
                f"there is no layer {missing[0]}: layers {min(self.seen_layers)} to {max(self.seen_layers)} ran",
                where="layers",
                advice="layers count from 0 within each stack",
            )

    def _trace(self, forward: Forward, group: Group, row: int) -> Trace:
        _, queries, keys = group.sizes
        kept = group.queries_kept[row], group.keys_kept[row]
        return self.trace_of(
            forward,
            group.series,
            group.rows[row],
            queries=self.naming.queries(forward, group, row),
            keys=self.naming.keys(forward, group, row),
            outputs=group.outputs[row],
            unrecorded=tuple(str(call) for call in forward.unrecorded),
            notes=self._notes(forward, group.stack),
            cut=Cut(row, places_of(kept[0], queries), places_of(kept[1], keys), (queries, keys)),
        )

    def trace_of(self, forward: Forward, series: Series, layers: list[LayerCopy], *, cut: Cut, **others: Any) -> Trace:
        """A trace of some layers.

        Args:
            forward: the forward pass, or that which would compute all of them.
            series: their stack, and which call of its transformer it is.
            layers: the copies.
            cut: the positions that the trace has.
            others: the trace's other fields.
        """
        stack, turn = series
        products = tuple(layer.products for layer in layers)
        silenced, swapped = recorded(
            {(layer.call["number"], head): way for layer in layers for head, way in layer.silenced.items()}
        )
        others["notes"] = (*others.get("notes", ()), *swap_notes(swapped))
        return Trace(
            model=self.name,
            layers=records_of(layers, all_layers=self.layers is None or self.seen_layers <= self.layers),
            ablated=silenced,
            swapped=swapped,
            source=CapturedModel(self.name, self.model, forward, stack, turn, cut, products),
            precision="fp32" if self.dtype == torch.float32 else "fp16",
            stack=stack.name,
            cut=cut,
            **others,
        )

    def _notes(self, forward: Forward, stack: Stack) -> tuple[str, ...]:
        """Sentences on the layers of a stack without a call, and on numbers that were dropped at random."""
        layers = self.layers
        idle = [path for path, owner, layer in forward.idle if owner == stack and (layers is None or layer in layers)]
        notes = (f"no attention of {few(idle, MOST_NAMES)} was seen in this forward pass",) if idle else ()
        return (*notes, IN_TRAINING.format(forward.dropped)) if forward.dropped else notes


def _dropping(modules: list[tuple[str, nn.Module]]) -> str:
    """Name of the first module in training mode with a rate of dropout above 0; empty if there is none."""
    for name, module in modules:
        if not getattr(module, "training", False):
            continue
        rate = module.p if isinstance(module, nn.modules.dropout._DropoutNd) else getattr(module, "dropout", 0.0)
        if isinstance(rate, float) and rate > 0:
            return name or type(module).__name__
    return ""


def _refuse_empty_rows(forward: Forward, call: Call) -> None:
    """Raise an error for a batch with empty texts, whose tokens are all masked.

    A pass that fills a cache may be a part of the prompt, which begins with padding.

    Raises:
        InputError: rows of the batch are empty; the message names them.
    """
    batch = len(call.q)
    mask = forward.kwargs.get("attention_mask")
    empty = set()
    cached = any(forward.kwargs.get(name) is not None for name in ("cache", "past_key_values"))
    if isinstance(mask, torch.Tensor) and mask.dim() == 2 and len(mask) == batch and not cached:
        empty |= set(torch.nonzero(~mask.bool().any(-1)).flatten().tolist())
    if call.own:
        # A row that is masked completely is accepted unless the module returned NaN for it.
        allowed = ((row, call.rules.row(row).mask.keys) for row in range(batch))
        hidden = [row for row, keys in allowed if keys is not None and not np.any(keys)]
        empty |= {row for row in hidden if not bool(torch.isfinite(call.context[row]).all())}
    if empty:
        rows = f"row {empty.pop()} is" if len(empty) == 1 else f"rows {', '.join(map(str, sorted(empty)))} are"
        raise InputError(
            f"{rows} empty in a batch of {batch}: the mask hides every token",
            where=f"{call.path}, attention mask",
            advice="remove empty texts from the batch, or let the tokenizer add its special tokens",
        )


def places_of(flags: np.ndarray | None, size: int) -> tuple[int, ...]:
    """The positions with a flag; all, without flags."""
    return tuple(range(size)) if flags is None else tuple(np.flatnonzero(flags).tolist())
