"""Readers of attention that bypasses transformers' interface and PyTorch's fused attention, in families of classes.

A reader turns the inputs of an attention module into queries, keys, values, a mask and score terms. While the module
runs, the contexts that follow from these are compared with the contexts that it computed, and the call is refused if
they differ (headscope.live.checking).
"""

from __future__ import annotations

from torch import nn

from headscope.live.seeing.readers import deberta
from headscope.live.seeing.readers.reading import Reader
from headscope.live.seeing.readers.written_out import BLIP, BLOOM, FALCON, MPNET, MPT, WRITTEN_OUT, XLM

READERS = {
    f"transformers.models.{name}": reader
    for name, reader in {
        "blip.modeling_blip.BlipAttention": BLIP,
        "blip.modeling_blip_text.BlipTextSelfAttention": WRITTEN_OUT,
        "bloom.modeling_bloom.BloomAttention": BLOOM,
        "deberta.modeling_deberta.DisentangledSelfAttention": deberta.READER,
        "deberta_v2.modeling_deberta_v2.DisentangledSelfAttention": deberta.READER_V2,
        "falcon.modeling_falcon.FalconAttention": FALCON,
        "flaubert.modeling_flaubert.MultiHeadAttention": XLM,
        "flava.modeling_flava.FlavaSelfAttention": WRITTEN_OUT,
        "git.modeling_git.GitSelfAttention": WRITTEN_OUT,
        "lxmert.modeling_lxmert.LxmertAttention": WRITTEN_OUT,
        "megatron_bert.modeling_megatron_bert.MegatronBertSelfAttention": WRITTEN_OUT,
        "mpnet.modeling_mpnet.MPNetSelfAttention": MPNET,
        "mpt.modeling_mpt.MptAttention": MPT,
        "rembert.modeling_rembert.RemBertSelfAttention": WRITTEN_OUT,
        "roformer.modeling_roformer.RoFormerSelfAttention": WRITTEN_OUT,
        "tapas.modeling_tapas.TapasSelfAttention": WRITTEN_OUT,
        "vilt.modeling_vilt.ViltSelfAttention": WRITTEN_OUT,
        "visual_bert.modeling_visual_bert.VisualBertSelfAttention": WRITTEN_OUT,
        "xlm.modeling_xlm.MultiHeadAttention": XLM,
    }.items()
}
"""Name of a class -> its reader."""


def reader_of(cls: type[nn.Module]) -> Reader | None:
    """The reader of a class of modules; None if it has none."""
    if not cls.__module__.startswith("transformers."):
        return None
    return READERS.get(f"{cls.__module__}.{cls.__qualname__}")


def reads(module: nn.Module) -> bool:
    """Return True if a module's class has a reader that can read it with its settings."""
    reader = reader_of(type(module))
    return reader is not None and reader.refusal(module) is None
