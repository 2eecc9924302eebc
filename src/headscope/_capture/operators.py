"""Observe every attention operator and every softmax that runs in a watched thread, under whatever name it is called.

PyTorch selects an operator's kernel by dispatch keys, and a thread can carry an additional key beside those of its
tensors. None of PyTorch's operators has a kernel under `KEY`, and `install` lets them fall through it, so a thread that
carries this key runs as before, at no cost, except for the operators to which `install` gave such a kernel. These
kernels call an observer, which runs the original operator. Aliases, tables of functions, `torch.ops` and TorchScript
all go through here.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import torch

from headscope.kernels import FUSED as FUSED_KERNELS
from headscope.kernels import KernelNotes


def _key() -> tuple[str, Any]:
    """A dispatch key that watches a thread, and its name.

    Above all others, in the order in which they are looked at, is one that nothing in PyTorch uses. Versions without
    it, or that can't let operators fall through it, have PreDispatch: every operator has a kernel there that only
    passes on to the next key, which takes a microsecond; about 1 % of a forward pass of 128 tokens.
    """
    key: Any = torch._C._parse_dispatch_key(UNUSED)  # None if there is none of this name
    if key is not None and hasattr(torch.library.Library, "fallback"):
        return UNUSED, key
    return "PreDispatch", torch._C.DispatchKey.PreDispatch


UNUSED = "TESTING_ONLY_GenericMode"
KEY_NAME, KEY = _key()

SDPA = torch.ops.aten.scaled_dot_product_attention.default
"""PyTorch's attention as one operator, above the fused kernels and the unfused one."""

SOFTMAX = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("_softmax", "_log_softmax", "_masked_softmax", "logsumexp")
    if hasattr(torch.ops.aten, name)
)
"""The operators that every softmax is made of, however it is called."""

FUSED = re.compile(r"attention|attn|mha_fwd|transformer_encoder_layer_fwd", re.IGNORECASE)
NOT_FORWARD = re.compile(r"backward|bwd", re.IGNORECASE)
"""Name patterns of operators that compute attention: PyTorch's own and those that other libraries register."""

Run = Callable[..., Any]
Observer = Callable[[Any, Run, tuple[Any, ...], dict[str, Any]], Any]
"""Called with an operator, a function that runs it, and its arguments; returns the operator's result."""


def watch(on: bool) -> None:
    """Start or stop watching this thread."""
    torch._C._dispatch_tls_set_dispatch_key_included(KEY, on)


class Unwatched:
    """`with Unwatched(): …` runs its block without observing this thread."""

    __slots__ = ("_watched",)

    def __enter__(self) -> None:
        self._watched = torch._C._dispatch_tls_is_dispatch_key_included(KEY)
        watch(False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        watch(self._watched)


class _Noting(threading.local):
    """The notes that this thread takes on fused kernels: those of the recorded call that is running; None otherwise."""

    def __init__(self) -> None:
        self.notes: KernelNotes | None = None


NOTING = _Noting()


class Noting:
    """`with Noting() as notes: …` takes notes on the fused attention kernels in its block, and observes nothing else.

    In inference mode and outside it, under autocast or not, they are those that PyTorch chooses without a capture.
    """

    __slots__ = ("_before", "_watched")

    def __enter__(self) -> KernelNotes:
        self._watched = torch._C._dispatch_tls_is_dispatch_key_included(KEY)
        self._before = NOTING.notes
        NOTING.notes = notes = KernelNotes()
        watch(True)
        return notes

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        NOTING.notes = self._before
        watch(self._watched)


class Operators:
    """The operators that have a kernel under `KEY`. One instance for the whole process, never undone.

    The kernels are inactive in threads that are not watched, so there is nothing to restore.
    """

    def __init__(self) -> None:
        self._libraries: dict[str, torch.library.Library] = {}
        self._known: set[str] = set()
        self._modules = 0

    def install(self, observer: Observer) -> None:
        """Give a kernel to every attention operator registered so far."""
        if len(sys.modules) == self._modules:
            return
        self._modules = len(sys.modules)
        if KEY_NAME == UNUSED and "_" not in self._libraries:
            self._libraries["_"] = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
            self._libraries["_"].fallback(torch.library.fallthrough_kernel, KEY_NAME)  # type: ignore[no-untyped-call]
        observed = [op.name() for op in (SDPA, *SOFTMAX)]
        names: list[str] = torch._C._dispatch_get_all_op_names()
        observed += [name for name in names if FUSED.search(name) and not NOT_FORWARD.search(name)]
        for name in observed:
            if name not in self._known:
                self._known.add(name)
                self._add_kernel(name, observer)
        for hop in list(torch._ops._higher_order_ops.values()):
            if KEY not in hop.py_kernels:
                hop.py_impl(KEY)(partial(_pass_on, hop, observer))

    def _add_kernel(self, name: str, observer: Observer) -> None:
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        op = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
        below = torch._C._dispatch_keyset_full_after(KEY)

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            notes = NOTING.notes
            if notes is not None and op is SDPA:
                return op.redispatch(keys & below, *args, **kwargs)  # the kernel that it chooses comes here, too
            with Unwatched():
                if notes is None:
                    return observer(op, partial(op.redispatch, keys & below), args, kwargs)
                if op in FUSED_KERNELS:
                    return notes.run(op, partial(op.redispatch, keys & below), args, kwargs)
                return op.redispatch(keys & below, *args, **kwargs)

        if space not in self._libraries:
            self._libraries[space] = torch.library.Library(space, "IMPL")  # type: ignore[no-untyped-call]
        self._libraries[space].impl(op, kernel, KEY_NAME, with_keyset=True)  # type: ignore[no-untyped-call]


def _pass_on(hop: Any, observer: Observer, *args: Any, **kwargs: Any) -> Any:
    """Run a higher-order operator: flex_attention is observed itself, of others the operators inside are."""

    def run(*args: Any, **kwargs: Any) -> Any:
        keyset = torch._ops._compute_keyset(args, kwargs, hop.non_fallthrough_keys)  # type: ignore[no-untyped-call]
        keys = keyset.remove(KEY)
        return hop.dispatch(keys.highestPriorityTypeId(), *args, **kwargs)

    if FUSED.search(hop.name()) and not NOT_FORWARD.search(hop.name()):
        with Unwatched():
            return observer(hop, run, args, kwargs) if NOTING.notes is None else run(*args, **kwargs)
    return run(*args, **kwargs)


OPERATORS = Operators()
