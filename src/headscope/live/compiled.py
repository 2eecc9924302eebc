"""Compiled models: `torch.compile(model)` and `model.compile()` stay compiled while they are captured.

While a block is open, compiled code runs uncompiled, except for models that the block covers. Such a call begins and
ends its forward pass here, puts the session's hooks aside, which no graph could call, and sets those of `in_graph`,
which add operators to the graph instead. PyTorch compiles a second graph for captured passes when it meets the first
one, and keeps both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn

from headscope.errors import UnsupportedError
from headscope.live import in_graph
from headscope.live.classes import kind_of
from headscope.live.genuine import undisturbed
from headscope.live.held import note_reader
from headscope.live.hooks import LOCK, SharedHooks, SharedSetting
from headscope.live.missed import Missed
from headscope.live.observed import run_observed
from headscope.live.operators import Unwatched
from headscope.live.sessions import OPEN, RUNNING, Graph, Session
from headscope.live.tokens import proofs
from headscope.live.transformers_support import is_proven, register_interface_call

KEY = "headscope"
"""Key of the hooks of `in_graph` in a module's table."""

UNCOMPILED_ADVICE = "call the model itself inside the block, uncompiled"


def original_of(model: Any) -> Any:
    """The model that torch.compile wrapped; the model itself if it is not wrapped."""
    dynamo = sys.modules.get("torch._dynamo")
    return model._orig_mod if dynamo is not None and isinstance(model, dynamo.OptimizedModule) else model


class Received:
    """Passes on what the operators of a running graph see to the sessions that cover the model."""

    def note(self, x: torch.Tensor, module: int, kind: int) -> None:
        """A tensor reached a module."""
        graph = RUNNING.compiled
        if graph is None:
            return
        if kind == in_graph.ATTENDS:
            graph.inside = True
            return
        if kind == in_graph.EMBEDDED:
            table: Any = graph.modules[module].weight
            graph.lookups.append((id(table), x.clone()))  # a graph uses its memory again
            return
        for session, forward in RUNNING.forwards:
            if kind == in_graph.ENTERED and module in session.counted:
                forward.progress.enter(graph.modules[module], (x,), reused=True)
            elif kind == in_graph.READ and (path := session.plan.readers.get(module)) is not None:
                note_reader(forward, x, path)

    def missed(self, x: torch.Tensor, name: str, over: int) -> None:
        """An attention operator or a softmax ran; one inside a function that is read as a whole is not missed."""
        graph = RUNNING.compiled
        if graph is None or graph.inside:
            return
        sizes = list(x.shape)
        reduced = sizes.pop(over) if over >= 0 else 0
        for session, forward in RUNNING.forwards:
            kind = type(session.model).__name__
            missed = Missed(id(session.model), "", kind, name, reduced, frozenset(sizes), certain=over < 0)
            forward.missed[missed] = 1

    def attended(
        self,
        function: int,
        module: int,
        number: int,
        tensors: dict[str, torch.Tensor | None],
        settings: dict[str, Any],
    ) -> None:
        """An attention function ran."""
        graph = RUNNING.compiled
        if graph is None:
            return
        graph.inside = False
        graph.numbers.append(number)
        graph.calls.append([])
        attention = graph.modules.get(module)
        query, key, value = tensors["query"], tensors["key"], tensors["value"]
        if attention is None or query is None or key is None or value is None:
            return
        seats = register_interface_call(attention, query, key)
        if seats:
            graph.calls[-1] += [(forward, place) for session, forward, place, _ in seats if session.listener.follows]
            ran = (tensors["output"], tensors["weights"])

            original, name = in_graph.FUNCTIONS[function]
            proven = is_proven(original, attention) and undisturbed(query, key, value)

            mask = tensors["mask"]
            if mask is not None and mask.is_cuda:
                mask = mask.clone()  # a graph uses its memory again, and on a GPU memory tells masks apart

            def result(*_: Any, **__: Any) -> Any:
                return ran

            with Unwatched():
                run_observed(result, name, proven, seats, attention, query, key, value, mask, **settings)


RECEIVED = Received()


def run(model: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a compiled model, and capture it for the sessions that cover it.

    Args:
        model: the model that is compiled.
        call: the compiled call.
        args, kwargs: its arguments.

    Raises:
        UnsupportedError: the model's attention can't be captured in a compiled graph.
    """
    sessions = [session for session in list(OPEN) if id(model) in session.plan.known and session.sees_this_thread()]
    if not sessions or RUNNING.compiled is not None:
        return call(*args, **kwargs)
    _refuse(model, sessions)
    in_graph.define(RECEIVED)
    begun = [session for session in sessions if session.forward() is None]
    graph = Graph(sessions, {id(module): module for session in sessions for _, module in session.plan.modules})
    output = None
    with ExitStack() as undo:
        for session in sessions:
            session.hooks.put_aside()
            undo.callback(session.hooks.put_back)
        undo.callback(_unmark, _mark(model, sessions))
        RUNNING.compiled = graph
        undo.callback(setattr, RUNNING, "compiled", None)
        try:
            for session in begun:
                session.begin(model, args, kwargs)
            with Unwatched(), in_graph.Traced(), torch.compiler.set_stance("default"):
                output = call(*args, **kwargs)
        finally:
            for session in reversed(begun):
                session.end(model, args, kwargs, output)
        RUNNING.compiled = None
        proofs.name(model, graph, args, kwargs)
    return output


def _mark(model: nn.Module, sessions: Iterable[Session]) -> list[nn.Module]:
    """Set the hooks that add operators to the graph; return the modules that have them."""
    marked = []
    for session in sessions:
        words = {id(embedding) for embedding in session.tables.embeddings}
        for _, module in session.plan.modules:
            at = id(module)
            hooks: list[Callable[..., None]] = [in_graph.note_ids] if at in words else []
            hooks += [in_graph.note_input] if at in session.plan.readers else []
            hooks += [in_graph.note_entry] if at in session.counted and module is not model else []
            for hook in hooks:
                key = (KEY, hook.__name__)
                module._forward_pre_hooks[key] = hook  # type: ignore[index]
                if hook is in_graph.note_entry:
                    module._forward_pre_hooks_with_kwargs[key] = True  # type: ignore[index]
            marked += [module] if hooks else []
    return marked


def _unmark(marked: Iterable[nn.Module]) -> None:
    for module in marked:
        for hook in (in_graph.note_ids, in_graph.note_input, in_graph.note_entry):
            module._forward_pre_hooks.pop((KEY, hook.__name__), None)  # type: ignore[call-overload]
            module._forward_pre_hooks_with_kwargs.pop((KEY, hook.__name__), None)  # type: ignore[call-overload]


def _refuse(model: nn.Module, sessions: Iterable[Session]) -> None:
    """Raise an error for what can't be captured in a graph.

    Raises:
        UnsupportedError: a session silences heads or watches another thread, or attention is not in transformers'
            interface, or it is flex attention.
    """
    name = type(model).__name__
    for session in sessions:
        if session.listener.silencing:
            raise UnsupportedError(
                f"heads of a compiled {name} can't be silenced: its graph has no place for it",
                where=name,
                advice=UNCOMPILED_ADVICE,
            )
        if session.busy_elsewhere():
            raise UnsupportedError(
                f"another thread runs {name} in the same block, and a graph is traced without the block's hooks",
                where=name,
                advice="let one thread run the compiled model at a time, or open a block in each",
            )
        for path, module in session.plan.modules:
            if id(module) not in session.plan.paths:
                continue
            chosen = getattr(getattr(module, "config", None), "_attn_implementation", None)
            if not kind_of(type(module)).uses_interface or chosen == "flex_attention":
                flex = chosen == "flex_attention"
                how = "with flex attention" if flex else "outside transformers' attention interface"
                raise UnsupportedError(
                    f"{type(module).__name__} attends {how}, so a compiled graph doesn't pass on its tensors",
                    where=path or name,
                    advice=UNCOMPILED_ADVICE + (", where transformers still compiles flex attention" if flex else ""),
                )


def refuse_compiled_function(model: nn.Module) -> None:
    """Raise an error if the model is called by a compiled function, which runs uncompiled in a block.

    Raises:
        UnsupportedError: the caller is compiled, and it is not the model itself.
    """
    if RUNNING.compiled is not None or "torch._dynamo" not in sys.modules:
        return
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile_wrapper" and code.co_filename.endswith("eval_frame.py"):
            raise UnsupportedError(
                f"{type(model).__name__} is called in a compiled function, whose graph capture can't enter",
                where=type(model).__name__,
                advice="compile the model instead, before the block: compiled = torch.compile(model); or call the "
                "function uncompiled",
            )
        frame = frame.f_back  # type: ignore[assignment]


def _run_uncompiled() -> Callable[[], None]:
    from torch._dynamo import OptimizedModule

    stance = torch.compiler.set_stance("force_eager")
    call = OptimizedModule.__call__

    def captured(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return call(self, *args, **kwargs)
        return run(self._orig_mod, partial(call, self), args, kwargs)

    OptimizedModule.__call__ = captured  # type: ignore[method-assign]

    def undo() -> None:
        OptimizedModule.__call__ = call  # type: ignore[method-assign]
        stance.__exit__(None, None, None)

    return undo


UNCOMPILED = SharedSetting(_run_uncompiled)
"""Runs compiled code uncompiled, except for models that an open block covers."""


def _hook(module: nn.Module) -> list[Callable[[], None]]:
    compiled = module._compiled_call_impl
    assert compiled is not None

    def captured(*args: Any, **kwargs: Any) -> Any:
        return run(module, compiled, args, kwargs)

    module._compiled_call_impl = captured

    def undo() -> None:
        with LOCK:
            if module._compiled_call_impl is captured:
                module._compiled_call_impl = compiled

    return [undo]


IN_PLACE = SharedHooks(_hook)
"""The calls of modules that were compiled with `module.compile()`."""
