"""Errors for attention that capture can't read: by its class before the model runs, by its numbers afterwards."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NoReturn

import torch
from torch import nn

from headscope.errors import InputError, UnsupportedError
from headscope.live.plan.classes import calls_sdpa, classes_where, kind_of
from headscope.live.seeing.readers import reader_of, reads

ADVICE_FOR_TRANSFORMERS = (
    "install the newest transformers, in which more models use its attention interface; capture a part of it that does "
    "(hs.capture(model.that_part)); use a related model; or get the weights from the model itself: model(..., "
    "output_attentions=True)"
)
ADVICE_FOR_OTHERS = (
    "call torch.nn.functional.scaled_dot_product_attention in it, or use nn.MultiheadAttention: capture reads both. "
    "Or capture a part of the model that does"
)

REASONS = {
    "LongformerSelfAttention": "tokens with global attention have projections of their own",
    "LEDEncoderSelfAttention": "tokens with global attention have projections of their own",
    "BigBirdBlockSparseAttention": "a random block of keys may count several times in a row",
    "BigBirdSelfAttention": "it is replaced by block-sparse attention for long texts",
    "BigBirdPegasusBlockSparseAttention": "a random block of keys may count several times in a row",
    "BigBirdPegasusSelfAttention": "it is replaced by block-sparse attention for long texts",
    "XLNetRelativeAttention": "queries have one bias for keys and another for positions, and two streams share it",
    "FunnelRelMultiheadAttention": "queries are pooled, and token types add scores of their own",
    "LukeSelfAttention": "words and entities have four query projections",
    "LSHSelfAttention": "keys are the queries, hashed into chunks",
    "LocalSelfAttention": "keys are attended to in chunks",
    "ProphetNetNgramSelfAttention": "several streams predict several tokens ahead",
    "NystromformerSelfAttention": "landmark tokens approximate its softmax",
    "InformerProbSparseAttention": "only some queries attend, and others get the mean of the values",
    "AutoformerAttention": "it correlates series instead of comparing tokens",
    "CanineSelfAttention": "it attends in local chunks",
    "MobileViTV2LinearSelfAttention": "it is linear attention: no query has a weight for each key",
    "SwiftFormerEfficientAdditiveAttention": "it is linear attention: no query has a weight for each key",
    "ConvBertSelfAttention": "half of its heads are convolutions",
    "SqueezeBertSelfAttention": "its projections are grouped convolutions",
}
"""Class of transformers -> why no reader turns it into queries, keys, values and score terms."""

WITHOUT_WEIGHTS = {
    "fnet": "a Fourier transform mixes its tokens",
    "mamba": "it is a state-space model",
    "mamba2": "it is a state-space model",
    "falcon_mamba": "it is a state-space model",
    "rwkv": "its attention is a linear recurrence",
    "xlstm": "it is a recurrent network",
    "yoso": "its attention is sampled by hashing",
    "mra": "its attention is approximated at several resolutions",
    "poolformer": "pooling mixes its tokens",
}
"""Model type -> why there are no attention weights."""


def refuse_others(thing: Any, where: str, advice: str) -> None:
    """Raise an error for anything but an nn.Module.

    Args:
        thing: what was passed as a model.
        where: the argument, or the function.
        advice: what to pass instead, if it wasn't made of a module.

    Raises:
        InputError: it is something else.
    """
    if isinstance(thing, nn.Module):
        return
    name = type(thing).__name__
    made = {"ExportedProgram": "exported; or use its module, program.module()", "ScriptFunction": "traced or scripted"}
    raise InputError(
        f"expected an nn.Module, got {name}",
        where=where,
        advice=f"pass the model itself, before it is {made[name]}" if name in made else advice,
    )


def opaque_modules(modules: Sequence[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """The modules of a model that, judging by their classes, compute attention in a way that capture can't see.

    The softmax of one that contains attention that capture reads is probably not attention.
    """
    suspected = classes_where((module for _, module in modules), lambda kind: kind.computes_own_attention)
    return [
        (path, module)
        for path, module in modules
        if type(module) in suspected
        and not reads(module)
        and not calls_sdpa(module)
        and (type(module).__module__.startswith("transformers.") or not any(map(attends, list(module.modules())[1:])))
    ]


def refuse_unreadable(name: str, opaque: Sequence[tuple[str, nn.Module]]) -> None:
    """Raise an error, before anything runs, for attention that capture can't see.

    Args:
        name: the model's class.
        opaque: the modules that compute it, with their names.

    Raises:
        UnsupportedError: attention outside the interface.
    """
    for path, module in opaque:
        cls = type(module)
        in_transformers = cls.__module__.startswith("transformers.")
        how = "outside transformers' attention interface" if in_transformers else "where capture can't see it"
        reader = reader_of(cls)
        reason = reader.refusal(module) if reader else REASONS.get(cls.__name__, "") if in_transformers else ""
        how += f" ({reason})" if reason else ""
        raise UnsupportedError(
            f"{name} can't be captured: {cls.__name__} computes its attention itself, {how}",
            where=path or name,
            advice=ADVICE_FOR_TRANSFORMERS if in_transformers else ADVICE_FOR_OTHERS,
        )


def attends(module: nn.Module) -> bool:
    """Return True if a module's class attends in a way that capture sees."""
    kind = kind_of(type(module))
    return kind.uses_interface or calls_sdpa(module) or isinstance(module, nn.MultiheadAttention) or reads(module)


def refuse(times: float, kind: str, where: str, hidden: str = "") -> NoReturn:
    """Raise an error for a layer whose recomputed contexts differ from the module's.

    Args:
        times: the difference, in multiples of what rounding explains; NaN for numbers that are not finite.
        kind: the module's class.
        where: its place in the model.
        hidden: a head from which its mask hides every key, and for which queries, if there is one.

    Raises:
        UnsupportedError: always.
    """
    if times != times:
        raise UnsupportedError(
            f"{kind} computed with numbers that are not finite (NaN or infinity)"
            + (f": the mask hides every key from {hidden}, and a softmax over no key is NaN" if hidden else ""),
            where=where,
            advice="check the model's weights and inputs, or run it in a wider precision: fp32, or bf16 for fp16. A "
            "softmax over no key is NaN, too: if the mask hides every key from a head, let it see one (hs.ablate "
            "silences heads), or call nn.MultiheadAttention with need_weights=False",
        )
    raise UnsupportedError(
        f"{kind} computes something other than softmax(scale Q K^T + mask) V: recomputed "
        f"contexts differ by {times:.1f} times what rounding explains",
        where=where,
        advice="this attention does more than capture can observe; please report the model's class",
    )


TRANSFORMS = ("Vmap", "Grad", "Jvp", "Functionalize")
"""The transforms of torch.func."""


def refuse_transforms(module: nn.Module, kinds: Collection[str] = TRANSFORMS) -> None:
    """Raise an error if a module runs in a transform of torch.func, whose tensors have no numbers of their own.

    Raises:
        UnsupportedError: it runs in one of these kinds.
    """
    for transform in torch._C._functorch.get_interpreter_stack() or ():
        if (name := transform.key().name) in kinds:
            raise UnsupportedError(
                f"{type(module).__name__} runs in torch.func.{name.lower()}, where its queries and keys can't be read",
                where=type(module).__name__,
                advice="call it outside of torch.func: with a batch instead of vmap, torch.autograd.grad instead of "
                "torch.func.grad",
            )
