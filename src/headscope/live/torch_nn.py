"""torch.nn: MultiheadAttention in all its forms, including inside Transformer encoders and decoders.

Its forward calls scaled_dot_product_attention, where it is read, unless it returns weights: then it attends step by
step. A call that returns weights is run a second time without them, and read there; its own result stays. PyTorch's
inference fast path would hide the call, so it is off while a capture is open.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import nn

from headscope.errors import UnsupportedError
from headscope.live.genuine import from_library
from headscope.live.hooks import Hooks, SharedHooks, SharedSetting
from headscope.live.operators import Unwatched
from headscope.live.projections import Output
from headscope.live.refusals import TRANSFORMS, refuse_transforms
from headscope.live.seats import Seat, heads_to_silence, recording
from headscope.live.sessions import COVERED, RUNNING
from headscope.live.tokens import following

NAMES = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")
"""The parameters of MultiheadAttention.forward, in order."""


def is_attention(module: nn.Module) -> bool:
    """Return True if this module is an nn.MultiheadAttention."""
    return isinstance(module, nn.MultiheadAttention)


def refuse_own_forwards(name: str, modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Raise an error for subclasses of MultiheadAttention that override forward: what they compute is unknown.

    Args:
        name: the model's class.
        modules: all modules of the model, with their names.

    Raises:
        UnsupportedError: a module overrides forward.
    """
    for path, module in modules:
        if is_attention(module) and type(module).forward is not nn.MultiheadAttention.forward:
            raise UnsupportedError(
                f"{type(module).__name__} is an nn.MultiheadAttention that overrides forward",
                where=path or name,
                advice="use nn.MultiheadAttention itself, or capture the parts of the model that don't contain it",
            )


def _switch_fast_path_off() -> Callable[[], None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    return lambda: torch.backends.mha.set_fastpath_enabled(before)


FAST_PATH = SharedSetting(_switch_fast_path_off)
"""Switches off PyTorch's inference fast path."""


def extra_keys(mha: nn.MultiheadAttention) -> tuple[str, ...]:
    """Names of the keys that are not tokens: bias_k, and the zero key that add_zero_attn appends."""
    return (("[bias_k]",) if mha.bias_k is not None else ()) + (("[zero]",) if mha.add_zero_attn else ())


class Given(NamedTuple):
    """What the MultiheadAttention that runs was given, as far as the operator in it doesn't show it.

    Attributes:
        query, key: (tokens, batch, d), or (tokens, d) without a batch.
        same_tokens: True if they are the same tokens.
        extra_keys: names of the keys that are not tokens.
    """

    query: torch.Tensor
    key: torch.Tensor
    same_tokens: bool
    extra_keys: tuple[str, ...]

    @classmethod
    def now(cls, mha: nn.MultiheadAttention) -> Given:
        """The arguments of the forward that runs in this thread, which puts the tokens before the batch."""
        frame = sys._getframe(1)
        while frame.f_code is not FORWARD or frame.f_locals["self"] is not mha:
            frame = frame.f_back  # type: ignore[assignment]
        query, key = (frame.f_locals[name] for name in NAMES[:2])
        same_tokens = query is key or (query.data_ptr() == key.data_ptr() and query.shape == key.shape)
        return cls(query, key, same_tokens, extra_keys(mha))

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self.query.shape[1] if self.query.dim() == 3 else 1


FORWARD = nn.MultiheadAttention.forward.__code__


class _Again(threading.local):
    """The call that is run a second time in this thread: id of its module, and whether heads are silenced in it."""

    def __init__(self) -> None:
        self.module = 0
        self.silenced = False


AGAIN = _Again()


def was_read(mha: nn.MultiheadAttention, seats: list[Seat]) -> None:
    """Note a call that was read at its operator: its output projection, and whether heads were silenced."""
    if AGAIN.module == id(mha):
        AGAIN.silenced = bool(heads_to_silence(seats))
    projects = from_library(nn.functional.multi_head_attention_forward) and "forward" not in vars(mha)
    for session, forward, place, _ in recording(seats):
        forward.awaited = None
        if projects:
            path = ".".join(filter(None, (session.plan.paths[id(mha)], "out_proj")))
            forward.projections[place.stack, place.layer] = Output((path,), mha.head_dim)


def after_call(mha: nn.MultiheadAttention, args: tuple[Any, ...], *keywords_and_output: Any) -> Any:
    """Note a call's tokens; if it returns weights, run it again to read it or to silence heads (a forward hook).

    Raises:
        UnsupportedError: the call can't be read.
    """
    if len(keywords_and_output) < 2:
        return None  # the last capture, in another thread, closed while this call ran
    kwargs, output = keywords_and_output
    given: dict[str, Any] = {"need_weights": True, **dict(zip(NAMES, args, strict=False)), **kwargs}
    sessions = [session for session in COVERED.get(id(mha), ()) if session.forward() is not None]
    if sessions:
        silencing = all(session.consumer.silencing for session in sessions)
        refuse_transforms(mha, {"Vmap"} if silencing else TRANSFORMS)
    changed = _again(mha, given, output) if sessions and given["need_weights"] else None
    axes = (0, 1, -1) if given["query"].dim() == 3 else (0, -1)
    following.attended((changed or output)[0], given["query"], axes)
    return changed


def _again(mha: nn.MultiheadAttention, given: dict[str, Any], output: Any) -> Any:
    """Run a call again without weights; return its output with those of the first run if heads are silenced in it."""
    for _, forward in RUNNING.forwards:  # what computed the weights is read in the second run
        for missed in [call for call in forward.missed if call.module == id(mha)]:
            del forward.missed[missed]
    drops = mha.training and mha.dropout > 0
    silencing = any(session.consumer.silencing for session in COVERED[id(mha)])
    AGAIN.module, AGAIN.silenced = id(mha), False
    with ExitStack() as undo:
        undo.callback(setattr, AGAIN, "module", 0)
        undo.enter_context(torch.set_grad_enabled(silencing and torch.is_grad_enabled()))
        if drops:
            undo.enter_context(torch.random.fork_rng([given["query"].device] if given["query"].is_cuda else []))
        second = mha.forward(**{**given, "need_weights": False, "is_causal": False})
    if AGAIN.silenced and drops:
        raise UnsupportedError(
            "heads of an nn.MultiheadAttention that returns weights can't be silenced while it applies dropout",
            where=type(mha).__name__,
            advice="call model.eval() first, set its dropout to 0, or call it with need_weights=False",
        )
    if AGAIN.silenced:
        return second[0], output[1]
    if not drops:
        _refuse_difference(mha, output[0].detach(), second[0].detach())
    return None


def _refuse_difference(mha: nn.MultiheadAttention, first: torch.Tensor, second: torch.Tensor) -> None:
    """Raise an error if a call computes something else where it returns weights.

    Raises:
        UnsupportedError: it does.
    """
    with Unwatched(), torch.no_grad():
        most = second.abs().amax() if second.numel() else 0.0
        if first.numel() and not bool((first - second).abs().amax() <= torch.finfo(first.dtype).eps ** 0.5 * most):
            raise UnsupportedError(
                "nn.MultiheadAttention computes another output with need_weights=True than without: a query that sees "
                "no key is NaN with weights, and code of your own may treat the two differently",
                where=type(mha).__name__,
                advice="call it with need_weights=False, or let every query see a key",
            )


class _Nested(threading.local):
    """The calls with nested tensors that are running in this thread: id of the module -> lengths of the rows."""

    def __init__(self) -> None:
        self.lengths: dict[int, list[int]] = {}


NESTED = _Nested()


def _pad(mha: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    """Pad nested queries (a forward pre-hook): only PyTorch's fast path, which is off, takes them as they are."""
    NESTED.lengths.pop(id(mha), None)
    given: dict[str, Any] = {**dict(zip(NAMES, args, strict=False)), **kwargs}
    query: Any = given.get("query")
    if not isinstance(query, torch.Tensor) or not query.is_nested or query.layout != torch.strided:
        return None
    if given.get("key") is not query or given.get("value") is not query:
        raise UnsupportedError(
            "nn.MultiheadAttention attends from nested queries to other keys",
            where=type(mha).__name__,
            advice="pass padded tensors and key_padding_mask",
        )
    lengths = [len(row) for row in given["query"].unbind()]
    padded = torch.nested.to_padded_tensor(query, 0.0)
    NESTED.lengths[id(mha)] = lengths
    places = torch.arange(padded.shape[1], device=padded.device)
    given |= dict.fromkeys(NAMES[:3], padded)
    given["key_padding_mask"] = places >= torch.tensor(lengths, device=padded.device)[:, None]
    return (), given


def nest(mha: nn.Module, args: tuple[Any, ...], output: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any] | None:
    """Nest the output of a call whose queries were nested (a forward hook)."""
    lengths = NESTED.lengths.pop(id(mha), None)
    if lengths is None:
        return None
    rows = [row[:length] for row, length in zip(output[0], lengths, strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.strided), output[1]


def _hook(mha: nn.Module) -> list[Callable[[], None]]:
    hooks = Hooks()
    hooks.before(mha, _pad, keywords=True)
    hooks.after(mha, after_call, keywords=True)
    hooks.after(mha, nest)
    return [hooks.remove]


WATCHED = SharedHooks(_hook)
"""The hooks on nn.MultiheadAttention, shared by all open captures."""
