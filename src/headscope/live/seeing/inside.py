"""Attention modules that have a reader: observe their calls, from their inputs and from the contexts they computed.

The contexts are what the module returns, or what its output projection is given. Both are seen as they are, so each
head's contexts are compared with those that follow from the reading.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from headscope.attention.patterns import Way, is_map, name_of
from headscope.checkpoint.weights_elsewhere import with_numbers
from headscope.errors import UnsupportedError
from headscope.live.calls import Call
from headscope.live.genuine import is_unchanged, undisturbed
from headscope.live.hooks import Hooks, Shared, of_thread
from headscope.live.keeping.projections import Awaited, Output
from headscope.live.masks.given import used_keys
from headscope.live.names import following
from headscope.live.names.axes import Followed
from headscope.live.names.sources import NOTHING
from headscope.live.plan.refusals import refuse_transforms
from headscope.live.seeing.observed import deliver_read
from headscope.live.seeing.operators import Unwatched
from headscope.live.seeing.parts import Ran
from headscope.live.seeing.readers import reader_of
from headscope.live.seeing.readers.reading import Arguments, Reader, Reading, dropout_of
from headscope.live.sessions import covering, heads_to_silence, recording, register_call
from headscope.live.silencing import silence

Run = tuple[nn.Module, torch.Tensor, torch.Tensor, dict[str, Any]]
"""A part of an attention module that ran, its input, its output and its keyword arguments."""

RUNS: dict[tuple[int, int], list[Run]] = {}
"""The parts that ran in the calls that are running, in order: see `of_thread`."""

_signature = cache(inspect.signature)


def observe_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Observe a call (a forward hook): deliver it to the sessions that record it, and silence heads in its output."""
    runs = RUNS.pop(of_thread(module), [])
    if not covering(module):
        return None  # the last capture, in another thread, closed while this call ran
    refuse_transforms(module)
    reader = reader_of(type(module))
    assert reader is not None
    signature = _signature(type(module).forward)
    bound = signature.bind_partial(
        module, *args, **{name: x for name, x in kwargs.items() if name in signature.parameters}
    )
    bound.apply_defaults()
    arguments = Arguments(module, {**bound.arguments, **kwargs})  # also those that a decorator renames
    with Unwatched(), torch.no_grad(), _brought_back(module, output[0].device):
        reading = reader.read(module, arguments, partial(_output_of, runs))
        if reading is None:
            return None
        followed = _tokens(arguments, reading)
        projection = module._modules.get(reader.projection or "")
        projected = next((run for run in reversed(runs) if run[0] is projection), None)
        changed = _observed(module, reader, reading, followed, projected, output)
    following.attended((changed or output)[0], _asking(arguments), (0, 1, -1))
    return changed


def _output_of(runs: list[Run], part: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Apply a part of the module to an input, unless it has been applied to it in this call."""
    for known, given, output, _ in runs:
        if known is part and (given.data_ptr(), given.shape, given.stride()) == (x.data_ptr(), x.shape, x.stride()):
            return output
    result: torch.Tensor = part(x)
    return result


@contextmanager
def _brought_back(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Give an offloaded module and its parts their parameters, on a device, from where accelerate keeps them.

    Raises:
        UnsupportedError: nothing keeps the numbers of one.
    """
    away = [
        (path, part, name, parameter)
        for path, part in module.named_modules()
        for name, parameter in part._parameters.items()
        if parameter is not None and parameter.is_meta
    ]
    try:
        for path, part, name, _ in away:
            x = with_numbers(module, f"{path}.{name}" if path else name, type(module).__name__)
            part._parameters[name] = nn.Parameter(x.to(device), requires_grad=False)
        yield
    finally:
        for _, part, name, parameter in away:
            part._parameters[name] = parameter


def _asking(arguments: Arguments) -> torch.Tensor:
    """(batch, queries, d): the hidden states that queries are made of."""
    states: torch.Tensor = arguments["hidden_states"]
    return states if arguments.get("query_states") is None else arguments["query_states"]


def _tokens(arguments: Arguments, reading: Reading) -> Followed:
    """The tokens of queries and keys: those of the hidden states that they are made of; none for cached keys."""
    states = arguments["hidden_states"]
    if reading.cross:
        states = arguments.seen if arguments.cache is None else None
    queries, keys = following.tokens_of(_asking(arguments), states, 0, 1)
    if keys is not None and (size := reading.k.shape[2]) > (new := keys.shape[1]):
        mask = reading.mask.read().mask
        used = size if mask is None else used_keys(mask, new)
        keys = np.pad(keys, ((0, 0), (used - new, size - used)), constant_values=NOTHING)
    return queries, keys


def _observed(
    module: nn.Module,
    reader: Reader,
    reading: Reading,
    followed: Followed,
    projected: Run | None,
    output: tuple[Any, ...],
) -> Any:
    queries, keys = reading.q.shape[2], reading.k.shape[2]
    seats = register_call(module, reading.q, reading.k, followed=followed)
    for seat in seats:
        seat.forward.forget(module)
    recorders, silenced = recording(seats), heads_to_silence(seats)
    if not recorders and not silenced:
        return None
    path = seats[0].session.plan.paths[id(module)]
    if reader.projection is not None and projected is None:
        raise UnsupportedError(
            f"{type(module).__name__} did not call its output projection {reader.projection}",
            where=path,
            advice="capture the model as transformers builds it",
        )
    heads, d_value = reading.q.shape[1], reading.v.shape[-1]
    joined = output[0] if projected is None else projected[1]
    context = joined.view(len(reading.q), queries, heads, d_value).transpose(1, 2)
    returned = output[1] if len(output) > 1 else None
    q, k, v, contexts = (x.detach() for x in (reading.q, reading.k, reading.v, context))
    ran = Ran(
        module,
        *(q, k, v, contexts),
        scale=reading.scale,
        dropout=dropout_of(module, reader.dropouts),
        weights=returned.detach() if isinstance(returned, torch.Tensor) else None,
        layer_terms=reading.terms,
        unfused=True,
        proven=is_unchanged(module) and undisturbed(q, k, v),
        silenced={head: name_of(way) for head, way in silenced.items()},
        stage=reading.stage,
        name=type(module).__name__,
        raw=reading.mask,
        keys=keys,
        same_tokens=False if reading.cross else None,
        returned=contexts,
        dtype=q.dtype,
    )
    call, result = deliver_read(ran, seats), output
    if call is not None:
        if output[0].requires_grad and any(map(is_map, silenced.values())):
            raise UnsupportedError(
                f"the values of {type(module).__name__} are read without their gradients, which another map needs",
                where=path,
                advice="run the model in torch.no_grad(), or silence the head: zero or mean",
            )
        result = _silenced_output(projected, output, context, silenced, call)
    for session, forward, place, *_ in recorders:
        if reader.projection is None:
            written = result[0].view(len(context), queries, heads, d_value)
            forward.awaited = Awaited.of(written, place)
        else:
            name = f"{session.plan.paths[id(module)]}.{reader.projection}".removeprefix(".")
            forward.projections[place.stack, place.layer] = Output((name,), d_value)
    return result if silenced else None


def _silenced_output(
    projected: Run | None, output: tuple[Any, ...], context: torch.Tensor, silenced: dict[int, Way], call: Call
) -> tuple[Any, ...]:
    """A module's output with heads silenced: with what its projection, if it has one, makes of the other contexts."""
    with torch.set_grad_enabled(output[0].requires_grad):
        changed = silence(context, silenced, call).transpose(1, 2).flatten(2)
        if projected is None:
            return (changed.contiguous(), *output[1:])
        projection, x, _, named = projected
        before, after = (projection.forward(given, **named) for given in (x, changed.view_as(x)))  # hooks have seen it
        return (output[0] + (after - before), *output[1:])


def _begin(attention: nn.Module, *given: Any) -> None:
    RUNS[of_thread(attention)] = []


def _keep_run(attention: nn.Module, part: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
    if (runs := RUNS.get(of_thread(attention))) is not None and args:
        runs.append((part, args[0], output, kwargs))


def _hook(module: nn.Module) -> Callable[[], None]:
    reader = reader_of(type(module))
    assert reader is not None
    hooks = Hooks()
    hooks.before(module, _begin)
    hooks.after(module, observe_call)
    for name, part in module.named_children():
        if name == reader.projection or isinstance(part, nn.Linear):
            hooks.after(part, partial(_keep_run, module))
    return hooks.remove


WATCHED = Shared(_hook)
"""The hooks on modules with a reader, shared by all open captures."""
