"""Copies that a capture keeps of a forward pass: which parts, on which device, and made without waiting for a GPU.

A copy from a GPU goes to pinned memory and is on its way when the layer's consumer returns; `Copies.finish` waits for
all of them at the end of the forward pass, once for each stream that the model ran on.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from headscope.attention.scores import Mask
from headscope.attention.terms import RELATIVE, Terms
from headscope.errors import InputError, first_line
from headscope.live.calls import Call, Forward
from headscope.live.keeping.cached_sequences import KeySpan
from headscope.live.keeping.contents import CPU, ContextProducts, direction, marked, together
from headscope.live.masks.analyst import RowRule
from headscope.live.names.axes import Followed
from headscope.live.plan.refusals import refuse
from headscope.live.plan.stacks import Stack
from headscope.live.progress import is_plain
from headscope.results.arrays import Named
from headscope.traces import LayerRecord
from headscope.traces.layer_records import beyond_half


class Room:
    """Memory for copies that are kept and dropped together, in one piece.

    Copies on their own would take the place of the model's temporary tensors, which then need new memory in every
    layer: at 2,048 tokens that costs as much as all else that a capture does.

    Args:
        copies: number of copies that are expected, of the first one's size; what doesn't fit is copied on its own.
    """

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._memory: torch.Tensor | None = None
        self._used = 0

    def copy(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A contiguous copy of a tensor on the CPU."""
        if self._memory is None:
            self._memory = torch.empty(self._copies * x.numel(), dtype=dtype, device="cpu")
        start, stop = self._used, self._used + x.numel()
        if stop > len(self._memory):
            return x.to(dtype, copy=True, memory_format=torch.contiguous_format)
        self._used = stop
        return self._memory[start:stop].view(x.shape).copy_(x)


KINDS = {"cpu"} | {kind for kind in ("cuda", "mps", "xpu") if getattr(torch, kind).is_available()}
"""The types of devices of this machine."""

Series = tuple[Stack, int]
Places = tuple["torch.Tensor | None", "torch.Tensor | None"]


@dataclass(eq=False)
class LayerCopy:
    """The copy of one layer of one row, on the chosen device until the trace is built."""

    call: dict[str, Any]
    tensors: dict[str, torch.Tensor | KeySpan | None]
    products: ContextProducts | None
    silenced: Mapping[int, str]
    followed: Followed = (None, None)


@dataclass(eq=False)
class Group:
    """Copies of the layers of one stack over the same tokens."""

    stack: Stack
    turn: int
    sizes: tuple[int, int, int]
    own: bool
    extras: tuple[str, ...]
    rows: list[list[LayerCopy]]
    queries_kept: list[np.ndarray | None]
    keys_kept: list[np.ndarray | None]
    rooms: list[dict[str, Room]]
    outputs: list[dict[str, Named]] = field(default_factory=list)
    masks: dict[tuple[int, int], Mask] = field(default_factory=dict)
    terms: dict[tuple[int, int], Terms] = field(default_factory=dict)
    _places: dict[tuple[int, torch.device], Places] = field(default_factory=dict)

    @property
    def series(self) -> Series:
        """Identifies the sequence across forward passes: the stack, and which call of its transformer this is."""
        return self.stack, self.turn

    @property
    def sequences(self) -> tuple[int, int, int]:
        """Identifies the sequences within a forward pass: which call of its transformer, how many, how many queries."""
        return self.turn, *self.sizes[:2]

    def holds(self, call: Call) -> bool:
        """Return True if a call has no token that this group's first call took for padding."""
        return all(
            _within(call.rules.row(row).keys, keys) and (not call.own or _within(call.rules.row(row).queries, queries))
            for row, (queries, keys) in enumerate(zip(self.queries_kept, self.keys_kept, strict=True))
        )

    def is_padding(self, row: int) -> bool:
        """Return True if all queries of a row are padding at its end, and none of them is kept as a key."""
        kept = self.keys_kept[row]
        return self.own and kept is not None and not kept[-1] and self.queries_kept[row] is None

    def places(self, row: int, device: torch.device) -> Places:
        """Positions of a row's queries and keys that are kept; None for all. To send them to a GPU waits for it."""
        key = (row, device)
        if key not in self._places:
            kept = self.queries_kept[row], self.keys_kept[row]
            queries, keys = (None if x is None else torch.from_numpy(np.flatnonzero(x)).to(device) for x in kept)
            self._places[key] = queries, keys
        return self._places[key]

    def mask(self, row: int, rule: RowRule) -> Mask:
        """The mask of a row without padding; layers with the same rule share it."""
        key = (row, id(rule))
        if key not in self.masks:
            self.masks[key] = rule.cut(self.queries_kept[row], self.keys_kept[row])
        return self.masks[key]


@dataclass(eq=False)
class Copies:
    """Records that a running forward pass has left so far.

    Attributes:
        groups: the copies.
        errors: each layer's error, which is read when the forward pass is over, so that nothing waits for a GPU; with
            its module's class, and its name and layer.
    """

    groups: dict[tuple[Any, ...], Group] = field(default_factory=dict)
    errors: list[tuple[torch.Tensor, tuple[str, str]]] = field(default_factory=list)
    _under_way: dict[torch.cuda.Stream, torch.cuda.Event] = field(default_factory=dict)

    def copy(self, x: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A contiguous copy of a tensor on a device; its numbers are there once `finish` has returned."""
        if not x.is_cuda or device.type != "cpu":
            return x.to(device, dtype, copy=True, memory_format=torch.contiguous_format)
        sent = x.to(dtype).contiguous()
        kept = torch.empty(sent.shape, dtype=dtype, device="cpu", pin_memory=True)
        kept.copy_(sent, non_blocking=True)
        stream = torch.cuda.current_stream(x.device)
        self._under_way.setdefault(stream, torch.cuda.Event()).record(stream)  # type: ignore[no-untyped-call]
        return kept

    def finish(self) -> None:
        """Wait until all copies have arrived.

        Raises:
            UnsupportedError: a module's output is not softmax(scale Q K^T + mask) V, as far as rounding explains it.
        """
        for event in self._under_way.values():
            event.synchronize()
        self._under_way.clear()
        read = together([error for error, _ in self.errors]).tolist()
        for times, (_, place) in zip(read, self.errors, strict=True):
            if not times <= 1:
                refuse(times, *place)


def records_of(layers: list[LayerCopy], *, all_layers: bool) -> list[LayerRecord]:
    """The records of a trace's layers. Arrays that several traces share are read-only.

    Args:
        layers: the copies.
        all_layers: False if layers were chosen, so that each has its number: see `LayerRecord`.

    Raises:
        InputError: fp16 is too narrow for their numbers.
    """
    in_order = all_layers and [layer.call["number"] for layer in layers] == list(range(len(layers)))
    records = []
    for layer in layers:
        arrays: dict[str, np.ndarray | None] = dict.fromkeys(layer.tensors)
        for name, part in layer.tensors.items():
            if part is not None:
                arrays[name] = array = (part.tensor() if isinstance(part, KeySpan) else part).cpu().numpy()
                if isinstance(part, KeySpan) and part.shared:
                    array.flags.writeable = False
        call = {**layer.call, "number": None} if in_order else dict(layer.call)
        call["terms"] = call["terms"].mapped(lambda table: table.cpu().numpy())
        for name, part in {**arrays, **{name: getattr(call["terms"], name) for name in RELATIVE}}.items():
            if part is not None and part.dtype == np.float16 and np.isinf(part).any():
                raise beyond_half(layer.call["number"], name)
        records.append(LayerRecord(**arrays, lse=None, **call))  # type: ignore[arg-type]
    return records


OF_TOKENS = ("last_hidden_state", "output", "hidden_states")
"""Names of outputs that have a vector for each token."""
ONE_EACH = ("start_logits", "end_logits")
"""Names of outputs that have a number for each token."""


def outputs_of(forward: Forward, group: Group, row: int) -> dict[str, Named]:
    """Copies of the model's outputs for this row, except large ones such as scores over the whole vocabulary."""
    batch, queries, _ = group.sizes
    output = forward.output
    values: dict[str, Any] = dict(output.items()) if hasattr(output, "items") else {}
    states = values.pop("hidden_states", None)  # present if the model was called with output_hidden_states=True
    if isinstance(states, tuple):
        values |= {f"hidden_states.{index}": state for index, state in enumerate(states)}
    if isinstance(output, torch.Tensor):
        values = {"output": output}
    kept: dict[str, Named] = {}
    for name, value in values.items():
        if not is_plain(value) or not value.is_floating_point() or not len(value.shape):
            continue
        if value.shape[0] != batch or (value.requires_grad and value.grad_fn is None):
            continue
        part = value.detach()[row]
        axes: tuple[str, ...] = ("d_model",) if name == "pooler_output" else ("labels",)
        each = name in ONE_EACH if part.dim() == 1 else part.dim() == 2 and name.split(".")[0] in OF_TOKENS
        if each and len(part) == queries:
            places, _ = group.places(row, part.device)
            part, axes = part if places is None else part[places], ("tokens", "d_model")[: part.dim()]
        elif part.dim() != 1:
            continue
        kept[name] = Named(name, axes, part.to("cpu", torch.float32, copy=True).numpy())
    return kept


def _within(flags: np.ndarray | None, kept: np.ndarray | None) -> bool:
    """Return True if all of the flagged positions are kept; None stands for all positions."""
    return kept is None or flags is kept or (flags is not None and not (flags & ~kept).any())


def numbers_of(name: str, values: Iterable[int]) -> list[int]:
    try:
        numbers = [operator.index(value) for value in values]
    except TypeError as error:
        raise InputError(
            f"expected a list of numbers, got {values!r:.60}",
            where=name,
            advice=f"list numbers counted from 0: {name}=[0, 3]",
        ) from error
    if not numbers:
        raise InputError(f"no {name} to keep", where=name, advice="name at least one, or omit it to keep all")
    return numbers


def chosen_device(device: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"copies can't be kept on {device!s:.40}: {first_line(error):.120}", where="device", advice='use "cpu"'
        ) from error


def products(
    call: Call, row: int, heads: list[int] | None, queries: torch.Tensor | None, copies: Copies
) -> ContextProducts | None:
    """The products of one row of the batch; None if the call's output can't be compared.

    Args:
        call: the call.
        row: the row of the batch.
        heads: the heads that are kept; None for all.
        queries: positions that are not padding; None for all.
        copies: brings its values to the CPU.
    """
    if call.dropout:
        return None
    count, d_value = call.q.shape[1], call.v.shape[-1]
    if call.mark is None:
        # In the memory layout of the interface's functions: query by query, the heads side by side.
        mark = marked(call.context[row].transpose(0, 1).reshape(-1, d_value))
    else:
        mark = call.mark.view(len(call.q), -1)[row]
    values = mark.view(-1, count).T
    values = values if heads is None else values[heads]
    values = values if queries is None else values[:, queries]
    fused = call.fused and call.weights is None and not call.rounded
    kept = values if values.device == CPU else copies.copy(values, torch.float32, CPU)
    return ContextProducts(kept.numpy(), direction(d_value, CPU).numpy(), call.eps, fused)
