"""Errors for attention that capture can't read, raised before the model runs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from headscope.errors import UnsupportedError
from headscope.live.classes import calls_sdpa, classes_where, kind_of
from headscope.live.readers import reader_of, reads

ADVICE_FOR_TRANSFORMERS = (
    "capture a part of it that uses transformers' attention interface (hs.capture(model.that_part)), use a related "
    "model that does, or get the weights from the model itself: model(..., output_attentions=True)"
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


def opaque_modules(modules: Sequence[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """The modules of a model that, judging by their classes, compute attention in a way that capture can't see."""
    suspected = classes_where((module for _, module in modules), lambda kind: kind.computes_own_attention)
    return [
        (path, module)
        for path, module in modules
        if type(module) in suspected
        and not reads(module)
        and not calls_sdpa(module)
        and (type(module).__module__.startswith("transformers.") or not _holds_attention(module))
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


def _holds_attention(module: nn.Module) -> bool:
    """Return True if a module contains attention that capture reads; its own softmax is then probably not attention."""
    parts = [part for part in module.modules() if part is not module]
    return any(
        kind_of(type(part)).uses_interface or calls_sdpa(part) or isinstance(part, nn.MultiheadAttention)
        for part in parts
    )
