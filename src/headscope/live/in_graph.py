"""The operators that compiled graphs call while they are captured, and the functions that put them into a graph.

A graph that torch.compile makes can't call back into Python at will, but it keeps operators that have an effect, in
their order. While a captured model is traced, these functions add them: at attention functions, at word embeddings, at
modules that may read an attention's output, and at the entry of modules whose calls are counted. When the graph runs,
each operator passes live tensors on to `Receiver`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from headscope.errors import UnsupportedError

ENTERED, EMBEDDED, READ, ATTENDS = range(4)
"""Kinds of notes about a tensor: an input of a module that is counted, ids, an input of a module that may be W_O, or
queries of an attention function that begins to run."""

SOFTMAXES = frozenset(
    {
        torch.softmax,
        torch.nn.functional.softmax,
        torch.Tensor.softmax,
        torch.log_softmax,
        torch.nn.functional.log_softmax,
        torch.Tensor.log_softmax,
        torch.logsumexp,
        torch.Tensor.logsumexp,
        torch.special.softmax,
        torch.special.log_softmax,
        torch.special.logsumexp,
    }
)
ATTENTION = frozenset(
    {torch.nn.functional.scaled_dot_product_attention, torch.nn.functional.multi_head_attention_forward}
)


FUNCTIONS: dict[int, tuple[Callable[..., Any], str]] = {}
"""id -> the attention functions that graphs may call, and the names under which the interface knows them."""


class Receiver(Protocol):
    """Receives what the operators of a running graph see."""

    def note(self, x: torch.Tensor, module: int, kind: int) -> None:
        """A tensor reached a module."""

    def missed(self, x: torch.Tensor, name: str, over: int) -> None:
        """An attention operator or a softmax ran; `over` is the dimension that it reduces, -1 for fused attention."""

    def attended(
        self,
        function: int,
        module: int,
        number: int,
        tensors: dict[str, torch.Tensor | None],
        settings: dict[str, Any],
    ) -> None:
        """An attention function ran.

        Args:
            function: its key in FUNCTIONS.
            module: id of the module that called it.
            number: tells its place in its graph from all others.
            tensors, settings: its arguments and results.
        """


SCHEMAS = {
    "note": "(Tensor x, int module, int kind) -> ()",
    "missed": "(Tensor x, str name, int over) -> ()",
    "attended": "(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? bias, Tensor? sinks, Tensor output,"
    " Tensor? weights, int module, int function, float? scaling, float dropout, float? softcap, int? sliding_window,"
    " bool? is_causal, int number) -> ()",
}


@cache
def define(receiver: Receiver) -> torch.library.Library:
    """Define the operators, once for the process.

    Raises:
        UnsupportedError: this version of PyTorch can't keep operators with effects in a graph.
    """
    if not hasattr(torch.library, "_register_effectful_op"):
        raise UnsupportedError(
            f"torch {torch.__version__} can't keep a capture's operators in a compiled graph",
            where="torch.compile",
            advice="install torch 2.13 or newer, or call the model itself, uncompiled",
        )
    from torch._library.effects import EffectType

    def attended(
        query: Any, key: Any, value: Any, mask: Any, bias: Any, sinks: Any, output: Any, weights: Any, *rest: Any
    ) -> None:
        module, function, scaling, dropout, softcap, sliding_window, is_causal, number = rest
        receiver.attended(
            function,
            module,
            number,
            {"query": query, "key": key, "value": value, "mask": mask, "output": output, "weights": weights},
            {
                "scaling": scaling,
                "dropout": dropout,
                "softcap": softcap,
                "sliding_window": sliding_window,
                "is_causal": is_causal,
                "position_bias": bias,
                "s_aux": sinks,
            },
        )

    torch.compiler.assume_constant_result(_new_number)  # type: ignore[no-untyped-call]
    library = torch.library.Library("headscope", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, run in (("note", receiver.note), ("missed", receiver.missed), ("attended", attended)):
        library.define(name + SCHEMAS[name])  # type: ignore[no-untyped-call]
        library.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"headscope::{name}", _nothing, lib=library)
        torch.library._register_effectful_op(f"headscope::{name}", EffectType.ORDERED)
    return library


def _nothing(*_: Any) -> None:
    return None


def attention(
    original: Callable[..., Any],
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run an attention function of transformers' interface in a graph, and let the graph pass on its tensors.

    The arguments are those of `run_observed`.
    """
    torch.ops.headscope.note(query.detach(), id(module), ATTENDS)
    result = original(module, query, key, value, mask, *args, **kwargs)
    weights = result[1] if len(result) > 1 and isinstance(result[1], torch.Tensor) else None
    torch.ops.headscope.attended(
        query.detach(),
        key.detach(),
        value.detach(),
        _plain(mask),
        _plain(kwargs.get("position_bias")),
        _plain(kwargs.get("s_aux")),
        result[0].detach(),
        _plain(weights),
        id(module),
        id(original),
        kwargs.get("scaling"),
        float(kwargs.get("dropout") or 0.0),
        kwargs.get("softcap"),
        kwargs.get("sliding_window"),
        kwargs.get("is_causal"),
        _new_number(),
    )
    return result


NUMBERS = itertools.count()


def _new_number() -> int:
    """A number that is drawn when a graph is traced, and is a constant in it: `define` tells the compiler so."""
    return next(NUMBERS)


def _plain(x: Any) -> Any:
    return x.detach() if isinstance(x, torch.Tensor) else None


def note_ids(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Pass on the ids that go through a word embedding (a forward pre-hook)."""
    if args and not args[0].is_floating_point():
        torch.ops.headscope.note(args[0], id(module), EMBEDDED)


def note_input(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Pass on the input of a module that may be an output projection (a forward pre-hook)."""
    if args and isinstance(args[0], torch.Tensor):
        torch.ops.headscope.note(args[0].detach(), id(module), READ)


def note_entry(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Pass on that a module begins to run (a forward pre-hook with keyword arguments)."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            torch.ops.headscope.note(value.detach(), id(module), ENTERED)
            return


class Traced(TorchFunctionMode):
    """Is on while a captured model runs compiled.

    PyTorch compiles a graph for each set of modes that are on. So captured forward passes have a graph of their own,
    and all others keep theirs. While that graph is traced, every softmax and every attention operator is noted in it.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in ATTENTION or func in SOFTMAXES:
            x = args[0] if args else kwargs.get("query", kwargs.get("input"))
            over = args[1] if len(args) > 1 else kwargs.get("dim")
            if func in ATTENTION:
                torch.ops.headscope.missed(x.detach(), "scaled_dot_product_attention", -1)
            elif isinstance(over, int):
                torch.ops.headscope.missed(x.detach(), "softmax", over % x.dim())
        return func(*args, **kwargs)
