"""Attention classes that call PyTorch's scaled_dot_product_attention by themselves, looked on while they run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from headscope.capture.sessions import COVERED, LOCK, covering
from headscope.capture.transformers_support import look_on
from headscope.errors import UnsupportedError

NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""scaled_dot_product_attention's parameters in order."""


class SdpaWatch(TorchFunctionMode):
    """While a module runs, looks on at its calls of scaled_dot_product_attention.

    Attributes:
        calls: how many it has seen.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not scaled_dot_product_attention:
            return func(*args, **kwargs)
        given = {**dict(zip(NAMES, args, strict=False)), **kwargs}
        seats = covering(self.module) if given["query"].dim() == 4 else []
        self.calls += 1
        if not seats:
            return func(*args, **kwargs)

        def run(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **_: Any) -> tuple[Any, None]:
            # In memory as the interface's functions leave it, so that the class need not copy it for its projection.
            return func(*args, **kwargs).transpose(1, 2).contiguous(), None

        result = look_on(
            run,
            "scaled_dot_product_attention",
            seats,
            self.module,
            *(given[name] for name in NAMES[:3]),
            given.get("attn_mask"),
            dropout=given.get("dropout_p", 0.0),
            scaling=given.get("scale"),
            is_causal=bool(given.get("is_causal", False)),
        )
        return result[0].transpose(1, 2)


class Watched:
    """The modules that are being watched, each once, however many captures are open. One for the whole process."""

    def __init__(self) -> None:
        self._users: dict[int, int] = {}
        self._undo: dict[int, list[Callable[[], None]]] = {}

    def enter(self, module: nn.Module) -> None:
        """Keep an SdpaWatch active while this module runs, in each thread its own."""
        with LOCK:
            self._users[id(module)] = self._users.get(id(module), 0) + 1
            if self._users[id(module)] == 1:
                self._undo[id(module)] = _hook(module)

    def leave(self, module: nn.Module) -> None:
        """Let go when the last capture closes."""
        with LOCK:
            self._users[id(module)] -= 1
            if self._users[id(module)] == 0:
                del self._users[id(module)]
                for undo in self._undo.pop(id(module)):
                    undo()


WATCHED = Watched()


def _hook(module: nn.Module) -> list[Callable[[], None]]:
    active: dict[int, list[SdpaWatch]] = {}

    def enter(module: nn.Module, args: Any) -> None:
        watch = SdpaWatch(module)
        active.setdefault(threading.get_ident(), []).append(watch)
        watch.__enter__()  # type: ignore[no-untyped-call]

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        watch = active[threading.get_ident()].pop()
        watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        looking = any(session.forward() is not None for session in COVERED.get(id(module), ()))
        if output is not None and looking and not watch.calls:
            raise UnsupportedError(
                f"{type(module).__name__} computed its attention by itself in this call, out of sight",
                where=type(module).__name__,
                advice="switch to sdpa attention as the model is made (attn_implementation='sdpa'), and call it "
                "without output_attentions and head_mask",
            )

    return [
        module.register_forward_pre_hook(enter).remove,
        module.register_forward_hook(leave, always_call=True).remove,
    ]
