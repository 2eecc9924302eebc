"""Checkpoints as the hub has them: the published fields of config.json, old names of tensors, pickles and shards.

The sizes are small and the weights random; everything else is as in the repositories that the cases name. The truth is
transformers' own class with the same weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import headscope as hs
from headscope.errors import UnsupportedError
from random_models import FAMILIES, ids, random_model, run
from random_models import SIZES as BERTS_SIZES

Tensors = dict[str, torch.Tensor]


def same(tensors: Tensors) -> Tensors:
    """The names that transformers saves."""
    return tensors


def deberta_v3(tensors: Tensors) -> Tensors:
    """Names of microsoft/deberta-v3-base: other heads on top, which transformers' classes don't have."""
    names = {
        "cls.predictions.transform.dense": "lm_predictions.lm_head.dense",
        "cls.predictions.transform.LayerNorm": "lm_predictions.lm_head.LayerNorm",
        "cls.predictions.bias": "lm_predictions.lm_head.bias",
    }
    renamed = {}
    for name, tensor in tensors.items():
        old = next((old for old in names if name.startswith(old)), None)
        renamed[name if old is None else names[old] + name.removeprefix(old)] = tensor
    renamed.pop("cls.predictions.decoder.weight", None)
    renamed.pop("cls.predictions.decoder.bias", None)
    width = tensors["deberta.embeddings.word_embeddings.weight"].shape[1]
    return {
        **renamed,
        "mask_predictions.dense.weight": torch.ones(width, width),
        "mask_predictions.dense.bias": torch.ones(width),
        "mask_predictions.LayerNorm.weight": torch.ones(width),
        "mask_predictions.LayerNorm.bias": torch.ones(width),
        "mask_predictions.classifier.weight": torch.ones(1, width),
        "mask_predictions.classifier.bias": torch.ones(1),
    }


def esm2(tensors: Tensors) -> Tensors:
    """Names of facebook/esm2_t6_8M_UR50D: unused positions, one table of frequencies per layer, a decoder."""
    width = tensors["esm.embeddings.word_embeddings.weight"].shape[1]
    half = width // FAMILIES["Esm"]["num_attention_heads"] // 2
    frequencies = 1.0 / 10000 ** (torch.arange(half, dtype=torch.float32) / half)
    layers = range(FAMILIES["Esm"]["num_hidden_layers"])
    return {
        **tensors,
        "esm.embeddings.position_embeddings.weight": torch.ones(64, width),
        "esm.embeddings.position_ids": torch.arange(64)[None],
        "lm_head.decoder.weight": tensors["esm.embeddings.word_embeddings.weight"].clone(),
        **{f"esm.encoder.layer.{at}.attention.self.rotary_embeddings.inv_freq": frequencies.clone() for at in layers},
    }


def with_positions(tensors: Tensors) -> Tensors:
    """Files of transformers 4 hold the positions 0, 1, …."""
    return {"embeddings.position_ids": torch.arange(66)[None], **tensors}


def within(old: str, new: str) -> Callable[[Tensors], Tensors]:
    """The base model's names begin with another prefix than the class's."""
    return lambda tensors: {
        new + name.removeprefix(old) if name.startswith(old) else name: tensor for name, tensor in tensors.items()
    }


def google(tensors: Tensors) -> Tensors:
    """The oldest names of norms, gamma and beta."""
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }


def tied(anchor: str, *copies: str) -> Callable[[Tensors], Tensors]:
    """Old pickles hold tied weights twice, as two names of one storage."""
    return lambda tensors: {**tensors, **dict.fromkeys(copies, tensors[anchor])}


@dataclass(frozen=True)
class Published:
    """A repository: the class that it was saved from, its fields, and the names in its file."""

    repository: str
    stem: str
    suffix: str
    fields: dict[str, Any]
    names: Callable[[Tensors], Tensors] = same
    config: dict[str, Any] = field(default_factory=dict)


SIZES = {name: size for name, size in BERTS_SIZES.items() if name != "max_position_embeddings"}
NOMIC_CODE = "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert"
NOMIC = {
    "activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0,
    "auto_map": {
        "AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig",
        "AutoModel": f"{NOMIC_CODE}.NomicBertModel",
        "AutoModelForMaskedLM": f"{NOMIC_CODE}.NomicBertForPreTraining",
        "AutoModelForSequenceClassification": f"{NOMIC_CODE}.NomicBertForSequenceClassification",
    },
    "bos_token_id": None, "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0, "eos_token_id": None,
    "fused_bias_fc": True, "fused_dropout_add_ln": True, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-12, "max_trained_positions": 2048, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
    "model_type": "nomic_bert", "n_embd": 32, "n_head": 4, "n_inner": 48, "n_layer": 3, "n_positions": 8192,
    "pad_vocab_size_multiple": 64, "parallel_block": False, "parallel_block_tied_norm": False,
    "prenorm": False, "qkv_proj_bias": False, "reorder_and_upcast_attn": False, "resid_pdrop": 0.0,
    "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True, "summary_activation": None, "summary_first_dropout": 0.0,
    "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
    "torch_dtype": "float32", "transformers_version": "4.37.2", "type_vocab_size": 2, "use_cache": True,
    "use_flash_attn": True, "use_rms_norm": False, "use_xentropy": True, "vocab_size": 60,
}  # fmt: skip
GTE = {
    **SIZES, "architectures": ["GteForMaskedLM"], "attention_probs_dropout_prob": 0.0, "bos_token_id": 0,
    "classifier_dropout": 0.0, "dtype": "float32", "eos_token_id": 2, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "initializer_range": 0.02, "layer_norm_eps": 1e-12,
    "max_position_embeddings": 8192, "model_type": "gte", "pad_token_id": 1,
    "rope_parameters": {"rope_theta": 160000.0, "rope_type": "default"}, "tie_word_embeddings": True,
    "type_vocab_size": 1,
}  # fmt: skip
PUBLISHED = (
    Published(
        "microsoft/deberta-v3-base",
        "DebertaV2",
        "ForMaskedLM",
        {
            **SIZES, "model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1, "initializer_range": 0.02, "max_position_embeddings": 64,
            "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
            "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "max_relative_positions": -1,
            "position_biased_input": False, "type_vocab_size": 0,
        },
        deberta_v3,
    ),
    Published(
        "answerdotai/ModernBERT-base",
        "ModernBert",
        "ForMaskedLM",
        {
            **SIZES, "num_hidden_layers": 4, "architectures": ["ModernBertForMaskedLM"], "attention_bias": False,
            "attention_dropout": 0.0, "bos_token_id": 1, "classifier_activation": "gelu", "classifier_bias": False,
            "classifier_dropout": 0.0, "classifier_pooling": "mean", "cls_token_id": 1, "decoder_bias": True,
            "deterministic_flash_attn": False, "embedding_dropout": 0.0, "eos_token_id": 2,
            "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "gradient_checkpointing": False,
            "hidden_activation": "gelu", "initializer_cutoff_factor": 2.0, "initializer_range": 0.02,
            "layer_norm_eps": 1e-05, "local_attention": 8, "local_rope_theta": 10000.0,
            "max_position_embeddings": 8192, "mlp_bias": False, "mlp_dropout": 0.0, "model_type": "modernbert",
            "norm_bias": False, "norm_eps": 1e-05, "pad_token_id": 0, "position_embedding_type": "absolute",
            "reference_compile": False, "repad_logits_with_grad": False, "sep_token_id": 2,
            "sparse_pred_ignore_index": -100, "sparse_prediction": False, "torch_dtype": "float32",
            "transformers_version": "4.47.0.dev0",
        },
        tied("model.embeddings.tok_embeddings.weight", "decoder.weight"),
    ),
    Published(
        "sentence-transformers/all-mpnet-base-v2",
        "MPNet",
        "Model",
        {
            **SIZES, "_name_or_path": "microsoft/mpnet-base", "architectures": ["MPNetForMaskedLM"],
            "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "eos_token_id": 2, "gradient_checkpointing": False,
            "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "initializer_range": 0.02, "layer_norm_eps": 1e-05,
            "max_position_embeddings": 66, "model_type": "mpnet", "pad_token_id": 1,
            "relative_attention_num_buckets": 32, "torch_dtype": "float32", "transformers_version": "4.11.3",
        },
        with_positions,
        config={"layer_norm_eps": 1e-5},
    ),
    Published(
        "albert/albert-base-v2",
        "Albert",
        "ForMaskedLM",
        {
            **SIZES, "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 2,
            "classifier_dropout_prob": 0.1, "down_scale_factor": 1, "embedding_size": 16, "eos_token_id": 3,
            "gap_size": 0, "hidden_act": "gelu_new", "hidden_dropout_prob": 0, "initializer_range": 0.02,
            "inner_group_num": 1, "layer_norm_eps": 1e-12, "max_position_embeddings": 64, "model_type": "albert",
            "net_structure_type": 0, "num_hidden_groups": 1, "num_memory_blocks": 0, "pad_token_id": 0,
            "type_vocab_size": 2,
        },
        tied("albert.embeddings.word_embeddings.weight", "predictions.decoder.weight"),
    ),
    Published(
        "facebook/esm2_t6_8M_UR50D",
        "Esm",
        "ForMaskedLM",
        {
            **SIZES, "architectures": ["EsmForMaskedLM"], "attention_probs_dropout_prob": 0.0,
            "classifier_dropout": None, "emb_layer_norm_before": False, "esmfold_config": None, "hidden_act": "gelu",
            "hidden_dropout_prob": 0.0, "initializer_range": 0.02, "is_folding_model": False, "layer_norm_eps": 1e-05,
            "mask_token_id": 4, "max_position_embeddings": 64, "model_type": "esm", "pad_token_id": 1,
            "position_embedding_type": "rotary", "token_dropout": True, "torch_dtype": "float32",
            "transformers_version": "4.25.0.dev0", "use_cache": True, "vocab_list": None,
        },
        esm2,
        config={"layer_norm_eps": 1e-5},
    ),
    Published("nomic-ai/nomic-embed-text-v1.5", "NomicBert", "Model", NOMIC),
    Published(
        "nomic-ai/nomic-bert-2048",
        "NomicBert",
        "ForMaskedLM",
        {**NOMIC, "architectures": ["NomicBertForPreTraining"]},
        within("nomic_bert.", "bert."),
    ),
    Published(
        "alibaba-nlp-community/gte-multilingual-base", "Gte", "ForMaskedLM", GTE, config={"type_vocab_size": 1}
    ),
    Published(
        "gte-multilingual-base with the first names",
        "Gte",
        "ForTokenClassification",
        {**GTE, "architectures": ["GteForTokenClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}},
        within("gte.", "new."),
        config={"type_vocab_size": 1},
    ),
    Published(
        "EuroBERT/EuroBERT-210m",
        "EuroBert",
        "ForMaskedLM",
        {
            **SIZES, "architectures": ["EuroBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0,
            "auto_map": {
                "AutoConfig": "configuration_eurobert.EuroBertConfig",
                "AutoModel": "modeling_eurobert.EuroBertModel",
                "AutoModelForMaskedLM": "modeling_eurobert.EuroBertForMaskedLM",
                "AutoModelForPreTraining": "modeling_eurobert.EuroBertPreTrainedModel",
                "AutoModelForSequenceClassification": "modeling_eurobert.EuroBertForSequenceClassification",
            },
            "bos_token": "<|begin_of_text|>", "bos_token_id": 1, "clf_pooling": "late", "eos_token": "<|end_of_text|>",
            "eos_token_id": 2, "head_dim": 8, "hidden_act": "silu", "hidden_dropout": 0.0, "initializer_range": 0.02,
            "mask_token": "<|mask|>", "mask_token_id": 4, "max_position_embeddings": 8192, "mlp_bias": False,
            "model_type": "eurobert", "num_key_value_heads": 2, "pad_token": "<|end_of_text|>", "pad_token_id": 0,
            "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 250000,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.40.0.dev0",
            "use_cache": False,
        },
        config={"rope_parameters": {"rope_theta": 250000.0, "rope_type": "default"}},
    ),
    Published(
        "google-bert/bert-base-uncased",
        "Bert",
        "ForPreTraining",
        {
            **SIZES, "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1,
            "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
            "initializer_range": 0.02, "layer_norm_eps": 1e-12, "max_position_embeddings": 64, "model_type": "bert",
            "pad_token_id": 0, "position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0",
            "type_vocab_size": 2, "use_cache": True,
        },
        google,
    ),
)  # fmt: skip


def saved(folder: Path, case: Published, kind: str) -> Any:
    """Write the repository; return the module of the same weights."""
    module = random_model(case.stem, case.suffix, **case.config)
    module.save_pretrained(folder)
    tensors = case.names(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    if kind == "pickle":
        torch.save(tensors, folder / "pytorch_model.bin")
    elif kind == "safetensors":
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    else:
        parts = list(tensors.items())
        shards = {"1-of-2": dict(parts[::2]), "2-of-2": dict(parts[1::2])}
        for shard, some in shards.items():
            save_file(
                {name: tensor.clone() for name, tensor in some.items()}, folder / f"model-0000{shard}.safetensors"
            )
        index = {name: f"model-0000{shard}.safetensors" for shard, some in shards.items() for name in some}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(case.fields))
    return module


KINDS = ("safetensors", "pickle", "shards")


@pytest.mark.parametrize(
    ("case", "kind"),
    [*((case, KINDS[at % 3]) for at, case in enumerate(PUBLISHED)), *((PUBLISHED[-1], kind) for kind in KINDS)],
    ids=lambda of: of if isinstance(of, str) else of.repository,
)
def test_published_checkpoints_are_read(tmp_path: Path, case: Published, kind: str) -> None:
    """Every head's weights, the hidden states and the logits, and the parameters' total."""
    module = saved(tmp_path, case, kind)
    row = list(ids(40))
    outputs = run(module, [row], padding=case.fields.get("pad_token_id", 0))
    model = hs.open(tmp_path)
    trace = model.trace(ids=row, hidden_states=True)
    assert not model.anatomy.problems
    for layer, attention in enumerate(outputs.attentions):
        np.testing.assert_allclose(trace[layer].weights[:], attention[0].numpy(), atol=2e-5)
    for state, theirs in zip(trace.hidden_states, outputs.hidden_states, strict=True):
        np.testing.assert_allclose(state.array, theirs[0].numpy(), atol=2e-5, rtol=2e-5)
    for name in ("logits", "prediction_logits"):
        if name in outputs and case.repository != "microsoft/deberta-v3-base":
            np.testing.assert_allclose(trace.outputs["logits"].array, outputs[name][0].numpy(), atol=3e-5, rtol=3e-5)
    base = getattr(module, module.base_model_prefix, module)
    assert model.parameters.total == sum(parameter.numel() for parameter in base.parameters())
    assert trace.verify(reference=False).agrees


def nomic(folder: Path, **fields: Any) -> Path:
    """A small nomic-embed-text with other fields."""
    case = next(case for case in PUBLISHED if case.stem == "NomicBert")
    saved(folder, case, "safetensors")
    (folder / "config.json").write_text(json.dumps({**NOMIC, **fields}))
    return folder


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("activation_function", "gelu"),
        ("causal", True),
        ("prenorm", True),
        ("parallel_block", True),
        ("rotary_emb_fraction", 0.5),
        ("rotary_emb_interleaved", True),
        ("rotary_emb_scale_base", 512),
        ("rotary_scaling_factor", 2),
        ("use_rms_norm", True),
    ],
)
def test_what_the_custom_code_could_do_is_named(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(UnsupportedError, match=f"{field} is"):
        hs.open(nomic(tmp_path, **{field: value})).trace(ids=[5, 6])


def test_the_published_base_of_the_rotation_counts(tmp_path: Path) -> None:
    model = hs.open(nomic(tmp_path, rotary_emb_base=50))
    assert set(model.anatomy.rotation_bases) == {50.0}


@pytest.mark.parametrize(
    "code",
    [
        "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
        "someone/modeling_hf_nomic_bert.NomicBertModel--modeling.Other",
        "modeling_eurobert.EuroBertModel",
    ],
)
def test_other_custom_code_is_refused(tmp_path: Path, code: str) -> None:
    with pytest.raises(UnsupportedError, match="custom code"):
        hs.open(nomic(tmp_path, auto_map={"AutoModel": code})).trace(ids=[5, 6])


def test_new_models_of_alibaba_name_the_field_and_a_way_out(tmp_path: Path) -> None:
    """gte-base-en-v1.5: its custom code stretches the rotation, and transformers has no class for it."""
    case = next(case for case in PUBLISHED if case.stem == "Gte")
    saved(tmp_path, case, "safetensors")
    code = "Alibaba-NLP/new-impl--modeling.NewModel"
    scaling = {"factor": 2.0, "type": "ntk"}
    (tmp_path / "config.json").write_text(
        json.dumps({**GTE, "model_type": "new", "auto_map": {"AutoModel": code}, "rope_scaling": scaling})
    )
    model = hs.open(tmp_path)
    assert model.parameters.total > 0
    with pytest.raises(UnsupportedError, match="model_type 'new'") as refused:
        model.trace(ids=[5, 6])
    assert "hs.capture" in str(refused.value)
