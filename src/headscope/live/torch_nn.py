"""torch.nn: MultiheadAttention in all its forms, including inside Transformer encoders and decoders.

Only the inputs and outputs of a MultiheadAttention can be observed. Q, K and V are projected again from its own
weights, as its forward does (torch.nn.functional.multi_head_attention_forward), and the resulting output is compared
with the module's. PyTorch's inference fast path would hide the call, so it is off while a capture is open.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from headscope.errors import UnsupportedError
from headscope.live.brought_back import brought_back
from headscope.live.calls import Projection
from headscope.live.genuine import is_unchanged, undisturbed
from headscope.live.hooks import Hooks, SharedHooks, SharedSetting
from headscope.live.masks.finding import RawMask, Rules
from headscope.live.masks.rows import contexts, kept_queries, score_bound
from headscope.live.operators import Unwatched
from headscope.live.projections import Output
from headscope.live.refusals import refuse_transforms
from headscope.live.seats import Seat, deliver, heads_to_silence, recording, register_call, silence
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


def project(
    mha: nn.MultiheadAttention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Q, K, V, (batch, heads, tokens, d_head), from (batch, tokens, d) each; K and V with the extra keys appended.

    in_proj_weight holds W_Q, W_K and W_V stacked; if kdim or vdim differ from embed_dim, they are separate parameters.
    """
    d_model = mha.embed_dim
    if mha._qkv_same_embed_dim:
        W_Q, W_K, W_V = torch.split(mha.in_proj_weight, d_model)
    else:
        W_Q, W_K, W_V = mha.q_proj_weight, mha.k_proj_weight, mha.v_proj_weight
    biases = (None, None, None) if mha.in_proj_bias is None else torch.split(mha.in_proj_bias, d_model)
    q, k, v = (F.linear(x, W, b) for x, W, b in zip((query, key, value), (W_Q, W_K, W_V), biases, strict=True))
    if mha.bias_k is not None and mha.bias_v is not None:
        k = torch.cat([k, mha.bias_k.to(k).expand(len(k), 1, -1)], dim=1)
        v = torch.cat([v, mha.bias_v.to(v).expand(len(v), 1, -1)], dim=1)
    if mha.add_zero_attn:
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    d_head = d_model // mha.num_heads
    q, k, v = (x.reshape(*x.shape[:2], mha.num_heads, d_head).transpose(1, 2) for x in (q, k, v))
    return q, k, v


def extra_keys(mha: nn.MultiheadAttention) -> tuple[str, ...]:
    """Names of the keys that are not tokens: bias_k, and the zero key that add_zero_attn appends."""
    return (("[bias_k]",) if mha.bias_k is not None else ()) + (("[zero]",) if mha.add_zero_attn else ())


def raw_mask(
    mha: nn.MultiheadAttention, arguments: dict[str, Any], keys: int, batched: bool, like: torch.Tensor
) -> RawMask:
    """Combine the masks of a call. In torch.nn, True means that a key is masked.

    Args:
        mha: the module.
        arguments: the call's arguments by name.
        keys: number of keys, extra keys included.
        batched: True if the call's tensors have a batch axis.
        like: (batch, heads, queries, d_head), the call's queries.

    Raises:
        UnsupportedError: `is_causal` is passed as a hint to a module with extra keys.
    """
    batch = len(like)
    heads, extra = mha.num_heads, len(extra_keys(mha))
    padding, mask = arguments["key_padding_mask"], arguments["attn_mask"]
    if arguments["is_causal"] and padding is None and not arguments["need_weights"]:
        if not extra:
            return RawMask.causal_from_the_first(like.shape[2], keys)
        raise UnsupportedError(
            "is_causal is passed as a hint together with bias_k or add_zero_attn: PyTorch drops the mask and counts "
            "the extra key as a token",
            where="nn.MultiheadAttention",
            advice="pass the mask with need_weights=True, or without is_causal",
        )

    def widen(part: torch.Tensor) -> torch.Tensor:
        return F.pad(part, (0, extra), value=True if part.dtype == torch.bool else 0.0) if extra else part

    allowed = None
    if padding is not None:
        if not batched:
            padding = padding[None]
        if padding.dtype == torch.bool:
            allowed = widen(~padding)
        else:
            part = widen(padding)[:, None, None, :]
            if mask is None:
                return RawMask(mask=part)
            mask = (
                mask
                if mask.dtype != torch.bool
                else torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))
            )
            return RawMask(mask=_shaped(widen(mask), batch, heads) + part)
    if mask is None:
        return RawMask(keys=allowed)
    return RawMask(mask=_shaped(widen(~mask if mask.dtype == torch.bool else mask), batch, heads), keys=allowed)


def _shaped(mask: torch.Tensor, batch: int, heads: int) -> torch.Tensor:
    return mask[None, None] if mask.dim() == 2 else mask.reshape(batch, heads, *mask.shape[1:])


def observe_call(
    mha: nn.MultiheadAttention, args: tuple[Any, ...], *keywords_and_output: Any
) -> tuple[torch.Tensor, Any] | None:
    """Observe a call (a forward hook): deliver it to the sessions that record it, and silence heads in its output."""
    if len(keywords_and_output) < 2:
        return None  # the last capture, in another thread, closed while this call ran
    kwargs, output = keywords_and_output
    arguments: dict[str, Any] = dict(zip(NAMES, (None, None, None, None, True, None, True, False), strict=True))
    arguments.update(zip(NAMES, args, strict=False))
    arguments.update(kwargs)
    query, key = arguments["query"], arguments["key"]
    batched = query.dim() == 3
    queries, keys = (len(x) if not batched else x.shape[1 if mha.batch_first else 0] for x in (query, key))
    batch = 1 if not batched else query.shape[0 if mha.batch_first else 1]
    rows, places = (None, 0) if not batched else (0, 1) if mha.batch_first else (1, 0)
    followed = following.tokens_of(query, key, rows, places)
    seats = register_call(mha, batch, queries, keys, (query.shape, key.shape), followed)
    axes = (0, 1, -1) if batched else (0, -1)
    following.attended(output[0], query, axes)
    for seat in seats:  # the operators that ran inside this module are read here
        for missed in [call for call in seat.forward.missed if call.module == id(mha)]:
            del seat.forward.missed[missed]
    recorders, silenced = recording(seats), heads_to_silence(seats)
    if not recorders and not silenced:
        return None
    refuse_transforms(mha, {"Vmap"})
    if silenced and mha.training and mha.dropout:
        raise UnsupportedError(
            "heads of an nn.MultiheadAttention can't be silenced while it applies dropout",
            where=seats[0].session.plan.paths[id(mha)],
            advice="call model.eval() first, or set its dropout to 0",
        )
    with Unwatched(), brought_back(mha, query.device):
        with torch.set_grad_enabled(bool(silenced) and torch.is_grad_enabled()):
            attention = _recomputed(mha, seats[0], arguments, batched)
        if recorders:
            returned = _batch_first(output[0].detach(), mha.batch_first, batched)
            _deliver(mha, recorders, attention, returned, frozenset(silenced))
        if not silenced:
            return None
        changed = _silenced_output(mha, attention, silenced, batched)
    following.attended(changed, query, axes)
    return changed, output[1]


class _Recomputed(NamedTuple):
    """The attention of a call, recomputed from its inputs: the fields of `Call` with these names."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    context: torch.Tensor
    kernel_lse: torch.Tensor
    scale: float
    rules: Rules
    own: bool


def _recomputed(mha: nn.MultiheadAttention, seat: Seat, arguments: dict[str, Any], batched: bool) -> _Recomputed:
    """Recompute the attention of a call from its arguments."""
    inputs = [arguments[name] for name in ("query", "key", "value")]
    same_tokens = _same_tokens(inputs[0], inputs[1])
    q, k, v = project(mha, *(_batch_first(x, mha.batch_first, batched) for x in inputs))
    scale = q.shape[-1] ** -0.5
    rules = seat.forward.analyst.rules(
        raw_mask(mha, arguments, k.shape[2], batched, q),
        len(q),
        q.shape[2],
        k.shape[2],
        slice(0, q.shape[2]) if same_tokens else None,
        reach=partial(score_bound, q, k, scale),
        where=seat.session.plan.paths[id(mha)],
    )
    context, lse = contexts(q, k, v, scale, rules)
    return _Recomputed(q, k, v, context, lse, scale, rules, same_tokens)


def _deliver(
    mha: nn.MultiheadAttention,
    recorders: list[Seat],
    attention: _Recomputed,
    returned: torch.Tensor,
    silenced: frozenset[int],
) -> None:
    """Deliver a call, with its output projection, to the sessions that record it."""
    for session, forward, place, _ in recorders:
        path = ".".join(filter(None, (session.plan.paths[id(mha)], "out_proj")))
        forward.projections[place.stack, place.layer] = Output((path,), mha.head_dim)
    weight, bias = mha.out_proj.weight, mha.out_proj.bias
    fields = attention._asdict().items()
    deliver(
        mha,
        recorders,
        **{name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in fields},
        stage="projected",
        returned=returned,
        projection=Projection(weight.detach(), None if bias is None else bias.detach()),
        extra_keys=extra_keys(mha),
        silenced=silenced,
        dropout=mha.dropout if mha.training else 0.0,
        proven=is_unchanged(mha) and undisturbed(attention.q, attention.k, attention.v),
    )


def _silenced_output(
    mha: nn.MultiheadAttention, attention: _Recomputed, silenced: dict[int, str], batched: bool
) -> torch.Tensor:
    """The output of a call with heads silenced, in the shape that the module returns."""
    kept = kept_queries(attention.rules, len(attention.q), attention.q)
    changed = silence(attention.context, silenced, kept)
    joined = F.linear(changed.transpose(1, 2).flatten(2), mha.out_proj.weight, mha.out_proj.bias)
    if not batched:
        joined = joined[0]
    elif not mha.batch_first:
        joined = joined.transpose(0, 1)
    return joined


def _batch_first(x: torch.Tensor, batch_first: bool, batched: bool) -> torch.Tensor:
    if not batched:
        return x[None]
    return x if batch_first else x.transpose(0, 1)


def _same_tokens(query: torch.Tensor, key: torch.Tensor) -> bool:
    return query is key or (query.data_ptr() == key.data_ptr() and query.shape == key.shape)


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
    hooks.after(mha, observe_call, keywords=True)
    hooks.after(mha, nest)
    return [hooks.remove]


WATCHED = SharedHooks(_hook)
"""The hooks on nn.MultiheadAttention, shared by all open captures."""
