"""Small random-weight models of many architectures, with weights large enough that attention is not near-uniform."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {**SHAPE, "vocab_size": 99}
PADDED = {**TEXT, "pad_token_id": 1}
LONGER = {**PADDED, "max_position_embeddings": 64}
DECODER = {**TEXT, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
SLIDING = {**DECODER, "head_dim": 8, "sliding_window": 3}
MODERN = {**TEXT, "local_attention": 4, "global_attn_every_n_layers": 2, "num_hidden_layers": 3, "pad_token_id": 0}
MARKS = {"bos_token_id": 1, "eos_token_id": 2}
MODERN |= {"cls_token_id": 1, "sep_token_id": 2, **MARKS}
VISION = {**SHAPE, "image_size": 16, "patch_size": 4}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 99}
SMALL = {**TEXT, "embedding_size": 16}
MOBILE = {**SMALL, "intra_bottleneck_size": 16, "true_hidden_size": 16}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64}
WAVES = {**TEXT, "conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_feat_extract_layers": 2}
WAVES |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
BART = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "vocab_size": 99}
BART |= {"decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 48}
BART |= {"max_position_embeddings": 64, "pad_token_id": 1}
BOTH = (("encoder", "encoder_attentions"), ("decoder", "decoder_attentions"), ("cross", "cross_attentions"))
WHISPER = {**BART, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16}
WHISPER |= {"decoder_start_token_id": 2, **MARKS}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 99}
T5["decoder_start_token_id"] = 0
SWITCH = {**T5, "num_experts": 2, "num_decoder_layers": 2}
SWITCH |= {"num_sparse_encoder_layers": 0, "num_sparse_decoder_layers": 0}
DEBERTA = {**TEXT, "relative_attention": True, "max_position_embeddings": 32}
DEBERTA |= {"type_vocab_size": 0, "position_biased_input": False}
EAGER = {"attn_implementation": "eager"}  # what 5.24 takes where there is a soft cap; 5.20 would leave it out
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
DEBERTA_V2 = {**DEBERTA, "position_buckets": 4, "norm_rel_ebd": "layer_norm"}
LXMERT = {**TEXT, "l_layers": 3, "x_layers": 2, "r_layers": 1, "visual_feat_dim": 10, "max_position_embeddings": 32}
LXMERT.pop("num_hidden_layers")
NO_TEXT = "scaled before; no text in the encoder"
IN_LXMERT = (("encoder", "language_attentions"), ("r_layers", "vision_attentions"))
REGIONS = {
    "visual_feats": torch.linspace(-1, 1, 100).view(2, 5, 10),
    "visual_pos": torch.linspace(0, 1, 40).view(2, 5, 4),
}
GIT = {**LONGER, "vision_config": {**VISION, "num_hidden_layers": 1}}
XLM = {"vocab_size": 99, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 32}
CACHE = "cache" if "cache" in inspect.signature(transformers.LlamaModel.forward).parameters else "past_key_values"
"""The argument of a decoder for its cache; it has the short name since transformers 5.24."""


@dataclass(frozen=True)
class Family:
    """One architecture.

    Attributes:
        name: transformers' model class; `config`: its config class, `settings`: what to make it with.
        takes: text, pairs of text, image, regions, audio, or both sides of an encoder-decoder.
        stage: what Q and K are.
        trap: what is special about it.
        stacks: where transformers' eager attentions of each stack are, by the stack's name.
        factor: what weights are multiplied by; sharpen: those of queries and keys once more.
        extra: further inputs.
    """

    name: str
    settings: dict[str, Any]
    config: str = ""
    takes: str = "text"
    stage: str = "projected"
    trap: str = ""
    stacks: tuple[tuple[str, str], ...] = (("self", "attentions"),)
    factor: float = 6.0
    sharpen: float = 1.0
    extra: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}-{self.trap}" if self.trap else self.name

    def build(self, dtype: torch.dtype = torch.float32, attention: str = "") -> Any:
        """The model, eval, with its default attention, or another. What transformers doesn't have yet is skipped."""
        if not hasattr(transformers, self.name):
            pytest.skip(f"transformers {transformers.__version__} has no {self.name}")
        torch.manual_seed(3)
        config_name = self.config or self.name.removesuffix("Model") + "Config"
        model = getattr(transformers, self.name)(getattr(transformers, config_name)(**self.settings)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "rel_embeddings" in name or name.endswith("sinks"):
                    parameter.mul_(40)  # from 0.02 to about 1, so that these terms count
                elif parameter.dim() > 1 and "embed" not in name.lower():
                    parameter.mul_(self.factor * (self.sharpen if "query" in name or "key" in name else 1.0))
        if attention:
            model.set_attn_implementation(attention)
        return model.to(dtype)

    def inputs(self, padded: bool, left: bool = False, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
        """Two rows; the second is shorter where `padded`."""
        generator = torch.Generator().manual_seed(5)
        if self.takes == "image":
            return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator).to(dtype)}
        if self.takes == "audio":
            return {"input_values": torch.randn(2, 640, generator=generator).to(dtype)}
        if self.takes == "features":
            return {
                "input_features": torch.randn(2, 8, 40, generator=generator).to(dtype),
                "decoder_input_ids": torch.randint(3, 99, (2, 5), generator=generator),
            }
        ids = torch.randint(3, 99, (2, 7), generator=generator)
        arguments: dict[str, Any] = {"input_ids": ids}
        if padded:
            arguments["attention_mask"] = torch.ones_like(ids)
            arguments["attention_mask"][1, slice(2) if left else slice(5, None)] = 0
        if self.takes == "both":
            arguments["decoder_input_ids"] = torch.randint(3, 99, (2, 5), generator=generator)
            if padded:
                arguments["decoder_attention_mask"] = torch.tensor([[1] * 5, [1] * 4 + [0]])
        if self.takes == "text and image":
            arguments["pixel_values"] = torch.randn(2, 3, 16, 16, generator=generator).to(dtype)
        if self.takes == "boxes":
            arguments["bbox"] = torch.randint(0, 9, (2, 7, 4), generator=generator).sort(-1).values
        return {**arguments, **self.extra}


def towers(**settings: Any) -> dict[str, Any]:
    """Settings of a model with a text and a vision tower."""
    return {"text_config": {**TEXT, "max_position_embeddings": 32}, "vision_config": VISION, **settings}


FAMILIES = [
    Family("BertModel", TEXT),
    *(
        Family(f"{name}Model", PADDED)
        for name in ("Roberta", "XLMRoberta", "XLMRobertaXL", "RobertaPreLayerNorm", "Camembert")
    ),
    Family("ElectraModel", SMALL),
    Family("DistilBertModel", DISTILBERT, trap="no layer_idx"),
    Family("AlbertModel", {**SMALL, "num_hidden_layers": 3}, trap="one module called once per layer"),
    Family("MobileBertModel", MOBILE, sharpen=700.0, trap="no layer_idx"),
    Family("SplinterModel", TEXT, trap="no is_causal"),
    Family("LayoutLMModel", TEXT, takes="boxes", trap="no is_causal"),
    Family("MarkupLMModel", {**TEXT, "max_depth": 5, "xpath_unit_hidden_size": 8}, trap="no is_causal"),
    Family("ErnieModel", TEXT),
    Family("XmodModel", PADDED, extra={"lang_ids": torch.tensor([0, 0])}),
    Family("EsmModel", {**PADDED, "position_embedding_type": "rotary"}, stage="rotated", trap="scaled before"),
    Family("EsmModel", {**PADDED, "position_embedding_type": "absolute", "mask_token_id": 2}, stage="scaled"),
    Family("ModernBertModel", MODERN, stage="rotated", trap="window on both sides"),
    Family("DPRQuestionEncoder", TEXT, config="DPRConfig"),
    Family("GPT2Model", GPT, trap="one fused projection"),
    Family("GPTNeoXModel", {**TEXT, "max_position_embeddings": 64}, stage="rotated"),
    Family("GPTBigCodeModel", GPT, trap="one key head"),
    Family("OPTModel", {**LONGER, "ffn_dim": 48, "word_embed_proj_dim": 32}, stage="scaled"),
    Family("BioGptModel", LONGER),
    Family("LlamaModel", DECODER, stage="rotated", trap="grouped queries"),
    Family("MistralModel", {**DECODER, "sliding_window": 3}, stage="rotated", trap="sliding window"),
    Family("Qwen2Model", DECODER, stage="rotated"),
    Family("Qwen3Model", {**DECODER, "head_dim": 8}, stage="rotated", trap="normed q and k"),
    *(
        Family("Gemma2Model", {**SLIDING, **EAGER, "attn_logit_softcapping": cap}, stage="rotated", trap=trap)
        for cap, trap in ((None, "windows in every other layer"), (2.0, "soft cap"))
    ),
    Family("Gemma3TextModel", SLIDING, config="Gemma3TextConfig", stage="rotated"),
    Family("PhiModel", DECODER, stage="rotated", trap="rotates a part"),
    Family("Phi3Model", {**DECODER, **MARKS}, stage="rotated", trap="one fused projection"),
    *(Family(f"{name}Model", DECODER, stage="rotated") for name in ("Olmo2", "Cohere", "StableLm", "Starcoder2")),
    Family("GptOssModel", {**SLIDING, **EXPERTS}, stage="rotated", trap="sinks"),
    *(
        Family(name, {**DECODER, "head_dim": 8, **settings}, stage="rotated", trap=trap)
        for name, settings, trap in (
            ("VaultGemmaModel", {**EAGER, "sliding_window": 3, "attn_logit_softcapping": 2.0}, "soft cap"),
            ("FlintModel", {}, "sinks"),
            ("MiMoV2FlashModel", {}, "sinks in every other layer"),
            ("OpenAIPrivacyFilterModel", {**EXPERTS, "sliding_window": 3}, "sinks on both sides"),
        )
    ),
    Family("MixtralModel", {**DECODER, "num_local_experts": 2}, stage="rotated"),
    Family("SmolLM3Model", {**DECODER, "no_rope_layers": [1, 1]}, stage="rotated"),
    Family("CTRLModel", {**GPT, "dff": 48}),
    Family("DPTModel", {**VISION, "is_hybrid": False}, takes="image"),
    Family("BartModel", BART, takes="both", stacks=BOTH, trap="encoder, decoder, cross"),
    *(
        Family(f"{name}Model", {**BART, **settings}, takes="both", stacks=BOTH)
        for name, settings in (
            ("MBart", {}),
            ("Pegasus", {}),
            ("Marian", {"decoder_start_token_id": 2}),
            *((name, {}) for name in ("Blenderbot", "M2M100", "PLBart")),
        )
    ),
    Family("T5Model", T5, takes="both", stacks=BOTH, trap="position bias, no scale"),
    Family("MT5Model", T5, takes="both", stacks=BOTH),
    Family("UMT5Model", T5, takes="both", stacks=BOTH, trap="a position bias in every layer"),
    Family("SwitchTransformersModel", SWITCH, takes="both", stacks=BOTH),
    Family("WhisperModel", WHISPER, takes="features", stacks=BOTH, stage="scaled", trap=NO_TEXT),
    Family("ViTModel", VISION, takes="image", trap="patches; no layer_idx"),
    *(Family(f"{name}Model", VISION, takes="image") for name in ("DeiT", "Dinov2")),
    Family("Dinov2WithRegistersModel", {**VISION, "num_register_tokens": 2}, takes="image"),
    *(Family(f"{name}Model", VISION, takes="image") for name in ("Beit", "ViTMSN")),
    Family("YolosModel", {**VISION, "image_size": [16, 16], "num_detection_tokens": 3}, takes="image"),
    Family("IJepaModel", VISION, takes="image"),
    Family(
        "SiglipVisionModel",
        VISION,
        takes="image",
        config="SiglipVisionConfig",
        factor=3.0,
        stacks=(("encoder", "attentions"),),
        trap="nn.MultiheadAttention on top",
    ),
    Family("CLIPVisionModel", VISION, takes="image", config="CLIPVisionConfig"),
    Family("CLIPTextModel", {**TEXT, "max_position_embeddings": 32}, config="CLIPTextConfig", trap="causal"),
    Family(
        "CLIPModel",
        towers(projection_dim=16),
        takes="text and image",
        stacks=(("text_model", "text_model_output"), ("vision_model", "vision_model_output")),
        trap="two towers",
    ),
    Family(
        "SiglipTextModel",
        {**TEXT, "max_position_embeddings": 32, "pad_token_id": 1, "projection_size": 32},
        config="SiglipTextConfig",
    ),
    Family("Wav2Vec2Model", WAVES, takes="audio"),
    Family("HubertModel", WAVES, takes="audio"),
    # Those that compute their attention themselves, and have a reader.
    *(
        Family("DebertaModel", {**DEBERTA, **settings}, trap=trap)
        for settings, trap in (
            ({"pos_att_type": ["c2p", "p2c"]}, "both relative terms"),
            ({"pos_att_type": ["c2p", "p2c"], "max_relative_positions": 3}, "distances beyond the table"),
            ({"pos_att_type": ["p2c"]}, "one relative term"),
            ({"relative_attention": False}, "no relative terms"),
        )
    ),
    *(
        Family("DebertaV2Model", {**DEBERTA_V2, **settings}, trap=trap)
        for settings, trap in (
            ({"share_att_key": True, "pos_att_type": ["p2c", "c2p"], "conv_kernel_size": 3}, "shared, convolution"),
            ({"share_att_key": False, "pos_att_type": ["c2p", "p2c"]}, "projections of their own"),
            ({"share_att_key": True, "pos_att_type": ["c2p"], "position_buckets": -1}, "no buckets"),
            ({"share_att_key": True, "pos_att_type": ["p2c"], "max_relative_positions": 3}, "distances are clipped"),
        )
    ),
    Family("MPNetModel", {**TEXT, "max_position_embeddings": 32}, trap="position bias"),
    *(
        Family("RoFormerModel", {**TEXT, "max_position_embeddings": 32, **more}, stage="rotated", trap=trap)
        for more, trap in (({}, ""), ({"rotary_value": True}, "rotated values"))
    ),
    Family("MegatronBertModel", {**TEXT, "max_position_embeddings": 32}, trap="norms before sums"),
    Family("RemBertModel", {**TEXT, "max_position_embeddings": 32, "input_embedding_size": 16}),
    Family("TapasModel", {**TEXT, "max_position_embeddings": 32}),
    Family("VisualBertModel", {**TEXT, "max_position_embeddings": 32}, trap="no cache"),
    Family("LxmertModel", LXMERT, takes="text and regions", stacks=IN_LXMERT, extra=REGIONS, trap="both ways at once"),
    Family("BlipTextModel", {**LONGER, "encoder_hidden_size": 32, "is_decoder": False}),
    Family("BlipVisionModel", {**VISION, "initializer_range": 0.02}, takes="image"),
    Family("GitModel", GIT, takes="text and image", stacks=(("encoder", "attentions"),), trap="an image comes first"),
    Family("BloomModel", {"hidden_size": 36, "n_layer": 2, "n_head": 6, "vocab_size": 99}, trap="ALiBi"),
    Family("MptModel", {"d_model": 36, "n_layers": 2, "n_heads": 6, "vocab_size": 99, "max_seq_len": 20}, trap="ALiBi"),
    *(
        Family("FalconModel", {**TEXT, **more, "attn_implementation": "eager"}, stage="rotated", trap=trap)
        for more, trap in (
            ({"new_decoder_architecture": False}, "one key head"),
            ({"new_decoder_architecture": True, "num_kv_heads": 2}, "grouped queries"),
        )
    ),
    *(Family(name, XLM) for name in ("XLMModel", "FlaubertModel")),
]
"""The architectures whose every weight is compared with transformers' eager attention."""

IN_GROUPS = Family("AlbertModel", {**SMALL, "num_hidden_layers": 6, "num_hidden_groups": 2})
"""Two modules, each called three times."""

BY_NAME = {family.name: family for family in reversed(FAMILIES)}


def built(
    name: str, dtype: torch.dtype = torch.float32, *, padded: bool = False, left: bool = False, attention: str = ""
) -> tuple[Any, dict[str, Any]]:
    """A family's model and its inputs."""
    return BY_NAME[name].build(dtype, attention), BY_NAME[name].inputs(padded, left)
