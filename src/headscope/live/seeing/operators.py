"""Observe every attention operator and every softmax that runs in a watched thread, under whatever name it is called.

PyTorch selects an operator's kernel by dispatch keys, and a thread can carry an additional key beside those of its
tensors. None of PyTorch's operators has a kernel under `KEY`, and `observe` lets them fall through it, so a thread that
carries this key runs as before, at no cost, except for the operators to which `observe` gave such a kernel. These
kernels call an observer, which runs the original operator. Aliases, tables of functions, `torch.ops` and TorchScript
all go through here.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch

from headscope.attention.kernels import FUSED as FUSED_KERNELS
from headscope.attention.kernels import KernelNotes

KEY_NAME = "TESTING_ONLY_GenericMode"
KEY: Any = torch._C._parse_dispatch_key(KEY_NAME)
"""A dispatch key that watches a thread: the first in PyTorch's order, and one that nothing in PyTorch uses."""

FOLLOW_KEY_NAME = "TESTING_ONLY_GenericWrapper"
FOLLOW_KEY: Any = torch._C._parse_dispatch_key(FOLLOW_KEY_NAME)
"""Another key, below it, that follows tokens: see `names.following`."""

SDPA = torch.ops.aten.scaled_dot_product_attention.default
"""PyTorch's attention as one operator, above the fused kernels and the unfused one."""

SOFTMAX = frozenset(
    getattr(torch.ops.aten, name).default for name in ("_softmax", "_log_softmax", "_masked_softmax", "logsumexp")
)
"""The operators that every softmax is made of, however it is called."""

PRODUCTS = frozenset((torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default))
"""The operators that every product of two batches of matrices is made of."""

FUSED = re.compile(r"attention|attn|mha_fwd|transformer_encoder_layer_fwd", re.IGNORECASE)
NOT_FORWARD = re.compile(r"backward|bwd", re.IGNORECASE)
"""Name patterns of operators that compute attention: PyTorch's own and those that other libraries register."""

BELOW: Any = torch._C._dispatch_keyset_full_after(KEY)

Run = Callable[..., Any]
Kernel = Callable[..., Any]
Observer = Callable[[Any, Run, tuple[Any, ...], dict[str, Any]], Any]
"""Called with an operator, a function that runs it, and its arguments; returns the operator's result."""


def watch(on: bool) -> None:
    """Start or stop watching this thread."""
    torch._C._dispatch_tls_set_dispatch_key_included(KEY, on)


def follow(on: bool) -> None:
    """Start or stop following this thread's operators: see headscope.live.names.following."""
    torch._C._dispatch_tls_set_dispatch_key_included(FOLLOW_KEY, on)


def followed() -> bool:
    """Return True if this thread's operators are followed."""
    return bool(torch._C._dispatch_tls_is_dispatch_key_included(FOLLOW_KEY))


class Unwatched:
    """`with Unwatched(): …` runs its block without observing or following this thread."""

    __slots__ = ("_followed", "_watched")

    def __enter__(self) -> None:
        self._watched = torch._C._dispatch_tls_is_dispatch_key_included(KEY)
        self._followed = followed()
        watch(False)
        follow(False)

    def __exit__(self, *error: object) -> None:
        watch(self._watched)
        follow(self._followed)


NOTING = threading.local()
"""The notes that this thread takes on fused kernels, in the recorded call that is running."""


@contextmanager
def noting() -> Iterator[KernelNotes]:
    """Take notes on the fused attention kernels that run in the block, and observe nothing else.

    In inference mode and outside it, under autocast or not, they are those that PyTorch chooses without a capture.
    """
    watched, before = torch._C._dispatch_tls_is_dispatch_key_included(KEY), _notes()
    NOTING.notes = notes = KernelNotes()
    watch(True)
    try:
        yield notes
    finally:
        NOTING.notes = before
        watch(watched)


def _notes() -> KernelNotes | None:
    return getattr(NOTING, "notes", None)


REGISTERING = threading.RLock()
"""Held while kernels are registered: blocks may open in several threads at once."""


class Kernels:
    """The operators that have a kernel under one of these keys. One instance for each key, never undone.

    The kernels are inactive in threads that don't carry the key, so there is nothing to restore.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._libraries: dict[str, torch.library.Library] = {}
        self._known: set[str] = set()
        self._state: tuple[int, ...] = ()

    def install(self, kernels: Callable[[set[str]], Iterable[tuple[Any, Kernel]]]) -> None:
        """Give kernels to operators that were registered since the last call.

        Args:
            kernels: called with the names of these operators; returns the operators to give a kernel to, and these.
        """
        with REGISTERING:
            state = len(sys.modules), len(torch.library._defs), len(torch.ops.loaded_libraries)
            if state == self._state:
                return
            # Kernels of operators that nothing defines: of a compiled library whose Python part didn't load all of it.
            undefined = {kernel.split(None, 2)[1] for kernel in torch._C._dispatch_find_dangling_impls()}
            names = {*torch._C._dispatch_get_all_op_names()} - self._known - undefined
            added = [*kernels(names)]
            self._state, self._known = state, self._known | names
            for op, kernel in added:
                space = op.namespace
                if space not in self._libraries:
                    self._libraries[space] = torch.library.Library(space, "IMPL")  # type: ignore[no-untyped-call]
                self._libraries[space].impl(op, kernel, self._key, with_keyset=True)  # type: ignore[no-untyped-call]


def operators_of(names: Iterable[str]) -> list[Any]:
    """The operators with these full names."""
    operators = []
    for name in names:
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        operators.append(getattr(getattr(getattr(torch.ops, space), packet), overload or "default"))
    return operators


def observe(observer: Observer) -> None:
    """Let every attention operator registered so far call an observer in watched threads."""
    with REGISTERING:
        _fall_through()
        OBSERVED.install(partial(_observing, observer))
        for hop in list(torch._ops._higher_order_ops.values()):
            if KEY not in hop.py_kernels:
                hop.py_impl(KEY)(partial(_pass_on, hop, observer))
                hop.py_impl(FOLLOW_KEY)(partial(_skip, hop))


@cache
def _fall_through() -> torch.library.Library:
    """Let all other operators fall through the keys."""
    library = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    for name in (KEY_NAME, FOLLOW_KEY_NAME):
        library.fallback(torch.library.fallthrough_kernel, name)  # type: ignore[no-untyped-call]
    return library


def _observing(observer: Observer, names: set[str]) -> list[tuple[Any, Kernel]]:
    """Those of these operators that compute attention, a softmax or a product, each with a kernel that observes it."""
    always = {op.name() for op in (SDPA, *SOFTMAX, *PRODUCTS)}
    observed = [name for name in names if name in always or (FUSED.search(name) and not NOT_FORWARD.search(name))]
    return [(op, partial(_run_observed, op, observer)) for op in operators_of(observed)]


def _run_observed(op: Any, observer: Observer, keys: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator in a watched thread."""
    notes, below = _notes(), keys & BELOW
    if notes is not None and op is SDPA:
        result = op.redispatch(below, *args, **kwargs)  # the kernel that it chooses comes here, too
        if notes.attended is not None:
            with Unwatched():
                notes.attended(args, kwargs, result)
        return result
    run = partial(_run_below, partial(op.redispatch, below), followed())
    with Unwatched():
        if notes is None:
            return observer(op, run, args, kwargs)
        if op in FUSED_KERNELS:
            notes.note(args[0])
        return run(*args, **kwargs)


def _run_below(run: Run, follows: bool, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that is observed, and follow it if it was followed."""
    follow(follows)
    try:
        return run(*args, **kwargs)
    finally:
        follow(False)


def _pass_on(hop: Any, observer: Observer, *args: Any, **kwargs: Any) -> Any:
    """Run a higher-order operator: flex_attention is observed itself, of others the operators inside are."""

    run = partial(_skip, hop)
    if FUSED.search(hop.name()) and not NOT_FORWARD.search(hop.name()):
        with Unwatched():
            return observer(hop, run, args, kwargs) if _notes() is None else run(*args, **kwargs)
    return run(*args, **kwargs)


def _skip(hop: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a higher-order operator below the keys that watch and follow a thread."""
    keys = torch._ops._compute_keyset(args, kwargs, hop.non_fallthrough_keys)  # type: ignore[no-untyped-call]
    keys = keys.remove(KEY).remove(FOLLOW_KEY)
    return hop.dispatch(keys.highestPriorityTypeId(), *args, **kwargs)


OBSERVED = Kernels(KEY_NAME)
