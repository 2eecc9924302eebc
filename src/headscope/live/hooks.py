"""Hooks and settings of captures, and modes of modules: set and restored in one pass, shared where several need them.

Compiled models (`torch.compile(model)`, `model.compile()`) and compiled functions run uncompiled inside a block. Their
graphs stay, and run again when the block has ended.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import nn

Hook = Callable[..., Any]


class Attached:
    """A hook in the tables of modules, until it is removed.

    A copy of a module has copies of its hooks, and is not captured: a copy of this one, and what is read of it from a
    file, is a function that does nothing. So does this one where somebody registers it for another module, without
    keyword arguments.

    Args:
        call: the hook.
        takes: number of its arguments.
    """

    __slots__ = ("call", "removed", "takes")

    def __init__(self, call: Hook, takes: int) -> None:
        self.call = call
        self.takes = takes
        self.removed = False

    def __call__(self, *given: Any) -> Any:
        """Call the hook."""
        return self.call(*given) if len(given) == self.takes and not self.removed else None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy as a function of Python's own library: files are also read where headscope is not installed."""
        return getattr, (nullcontext(), "__exit__")


class Hooks:
    """The hooks of one session.

    They are entered in the modules' tables directly: `register_forward_pre_hook` makes a handle for each, which takes
    longer than all that a hook does.
    """

    def __init__(self) -> None:
        self._attached: dict[Hook, Attached] = {}
        self._entered: list[tuple[tuple[Any, ...], Any, bool]] = []

    def before(self, module: nn.Module, hook: Hook, *, first: bool = False) -> None:
        """Call `hook(module, args, kwargs)` before the module runs; before all hooks, if it is the first."""
        attached = self._attached.setdefault(hook, Attached(hook, 3))
        self._enter(attached, module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs, first=first)

    def after(self, module: nn.Module, hook: Hook, *always: dict[Any, bool]) -> None:
        """Call `hook(module, args, kwargs, output)` after the module has run."""
        attached = self._attached.setdefault(hook, Attached(hook, 4))
        self._enter(attached, module._forward_hooks, module._forward_hooks_with_kwargs, *always)

    def around(self, module: nn.Module, begin: Hook, end: Hook) -> None:
        """Call `begin(module, args, kwargs)` before all hooks, and `end(module, args, kwargs, output)` in any case."""
        self.before(module, begin, first=True)
        self.after(module, end, module._forward_hooks_always_called)

    def put_last(self) -> None:
        """Let those that come last do so again: somebody may have registered others since."""
        for (table, *_), key, first in self._entered:
            if not first and key in table:
                table.move_to_end(key)

    def remove(self) -> None:
        """Remove all hooks for good, also where somebody else has put them."""
        for attached in self._attached.values():
            attached.removed = True
        for tables, key, _ in self._entered:
            for table in tables:
                table.pop(key, None)
        self._attached.clear()
        self._entered.clear()

    def _enter(self, attached: Attached, table: Any, *sides: dict[Any, bool], first: bool = False) -> None:
        """Enter a hook in a table of a module, and in the tables that say how it is called."""
        key = id(self), id(attached)  # PyTorch's own keys are numbers, counted up
        for side in sides:
            side[key] = True
        self._entered.append(((table, *sides), key, first))
        table[key] = attached
        if first:
            table.move_to_end(key, last=False)


def frames() -> Iterator[FrameType]:
    """The frames of the functions around the one that asks, innermost first.

    Its own frame is not among them: reading its locals would leave it, and so all that they hold, in a circle.
    """
    return _outwards(sys._getframe(2))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


LOCK = threading.RLock()


def of_thread(module: nn.Module) -> tuple[int, int]:
    """Identify a module's call that runs in this thread."""
    return threading.get_ident(), id(module)


class Shared:
    """A process-wide setting or the hooks on a module: applied for its first user, undone when its last user leaves.

    Users in different threads may leave in any order, so they are counted: the first one to enter must not undo it
    while others still need it. Each module is hooked once, however many captures cover it.

    Args:
        apply: applies the setting, or hooks a module, and returns a function that undoes it.
    """

    def __init__(self, apply: Callable[..., Callable[[], None]]) -> None:
        self._apply = apply
        self._users: dict[tuple[int, ...], int] = {}
        self._undo: dict[tuple[int, ...], Callable[[], None]] = {}

    @contextmanager
    def used(self, *module: nn.Module) -> Iterator[None]:
        """Apply the setting in the block, or hook the module: the first user does, and the last one undoes it."""
        key = tuple(map(id, module))
        with LOCK:
            if key not in self._users:
                self._undo[key] = self._apply(*module)
            self._users[key] = self._users.get(key, 0) + 1
        try:
            yield
        finally:
            with LOCK:
                self._users[key] -= 1
                if not self._users[key]:
                    del self._users[key]
                    self._undo.pop(key)()


def original_of(model: Any) -> Any:
    """The model that torch.compile wrapped; the model itself if it is not wrapped."""
    dynamo = sys.modules.get("torch._dynamo")
    return model._orig_mod if dynamo is not None and isinstance(model, dynamo.OptimizedModule) else model


UNCOMPILED = Shared(lambda: partial(torch.compiler.set_stance("force_eager").__exit__, None, None, None))
"""Runs compiled code uncompiled."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the block with the model in eval mode, and restore the mode of each module.

    `model.train(mode)` would give all of them one mode, and put the modules that someone froze with `eval()` back to
    training. Modules of frozen TorchScript have no mode, and exported ones don't change theirs.
    """
    modes = [(module, module.training) for module in model.modules() if hasattr(module, "training")]
    try:
        if any(training for _, training in modes):
            model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's first parameter that has numbers; the CPU if none has."""
    return next((parameter.device for parameter in model.parameters() if not parameter.is_meta), torch.device("cpu"))


Drawn = dict[torch.device, torch.Tensor]
"""Device -> the state of the generator that a model's next random numbers come from; the CPU first."""


def drawn_next(model: nn.Module) -> Drawn:
    """The states that a model's next random numbers follow from: some draw them in eval mode, as ViTMAE its patches."""
    device, cpu = device_of(model), {torch.device("cpu"): torch.get_rng_state()}
    known = device.type in ("cuda", "xpu")
    return {**cpu, device: torch.get_device_module(device).get_rng_state(device)} if known else cpu


@contextmanager
def drawing(drawn: Drawn) -> Iterator[None]:
    """Run the block with these random numbers; those that come next are as they would be without it."""
    cpu, *devices = drawn
    with torch.random.fork_rng(devices, device_type=devices[0].type if devices else "cuda"):
        torch.set_rng_state(drawn[cpu])
        for device in devices:
            torch.get_device_module(device).set_rng_state(drawn[device], device)
        yield
