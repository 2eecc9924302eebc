"""Random checkpoints of every family that the encoder runs, written by transformers; their attention is not flat."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.utils import logging

from headscope.traces import Trace
from making import SPECIAL_IDS

logging.disable_progress_bar()
logging.set_verbosity_error()

SIZES = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
SIZES |= {"max_position_embeddings": 64}
DEBERTA_V3 = {"relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True}
DEBERTA_V3 |= {"pos_att_type": "p2c|c2p", "max_relative_positions": -1}
DEBERTA_V3 |= {"position_biased_input": False, "type_vocab_size": 0}
ROBERTA_SIZES = {**SIZES, "max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1}
DISTILBERT = {"vocab_size": 60, "dim": 32, "hidden_dim": 48, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": SIZES,
    "Roberta": ROBERTA_SIZES,
    "XLMRoberta": ROBERTA_SIZES,
    "Camembert": ROBERTA_SIZES,
    "DistilBert": DISTILBERT,
    "Electra": {**SIZES, "embedding_size": 16},
    "Albert": {**SIZES, "embedding_size": 16},
    "Ernie": {**SIZES, "use_task_id": True},
    "MegatronBert": SIZES,
    "RoFormer": {**SIZES, "embedding_size": 16},
    "ModernBert": {**SIZES, **SPECIAL_IDS, "local_attention": 8, "num_hidden_layers": 4},
    "Esm": {**SIZES, "pad_token_id": 1, "mask_token_id": 4, "position_embedding_type": "rotary", "token_dropout": True},
    "NomicBert": SIZES,
    "Gte": {**SIZES, "pad_token_id": 1},
    "EuroBert": {**SIZES, **SPECIAL_IDS, "num_key_value_heads": 2},
    "MPNet": {**SIZES, "max_position_embeddings": 66},
    "DebertaV2": {**SIZES, **DEBERTA_V3},
}

BERTS_LAYER = ("Bert", "Roberta", "XLMRoberta", "Camembert", "DistilBert", "Electra", "Albert", "Ernie")
"""Families with BERT's layer: norms after sums, no gate, no rotation."""

WITH_SEGMENTS = {"Bert", "Electra", "Albert", "Ernie", "MegatronBert", "RoFormer", "NomicBert"}
"""Families with more than one segment."""

QUERIES_AND_KEYS = ("query.weight", "key.weight", "q_lin.weight", "k_lin.weight", "q_proj.weight", "k_proj.weight",
                    "query_proj.weight", "key_proj.weight", "attn.q.weight", "attn.k.weight")  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A checkpoint on disk and the module that wrote it, in fp32 and eager."""

    folder: Path
    module: Any
    config: dict[str, Any]


def random_model(stem: str, suffix: str = "Model", *, sharpness: float = 1.0, **config: Any) -> Any:
    """A module of a family with random weights: biases and norms are off their initial values, scores are wide."""
    labels = 2 if suffix == "ForQuestionAnswering" else 3
    built = getattr(transformers, f"{stem}Config")(**{**FAMILIES[stem], "num_labels": labels, **config})
    built._attn_implementation = "eager"
    torch.manual_seed(len(stem) + len(suffix))
    module = getattr(transformers, stem + suffix)(built).eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
            if name.endswith(QUERIES_AND_KEYS):
                parameter.mul_(3 * sharpness)
            if name.endswith("Wqkv.weight"):
                parameter[: 2 * len(parameter) // 3].mul_(3 * sharpness)
    return module


def made(folder: Path, stem: str, suffix: str = "Model", *, dtype: torch.dtype = torch.float32, **config: Any) -> Made:
    """A random module, saved in dtype; the returned module holds the same rounded weights in fp32."""
    module = random_model(stem, suffix, **config)
    module.to(dtype).save_pretrained(folder)
    if dtype != torch.float32:  # read again, since buffers such as frequencies stay in fp32
        module = type(module).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return Made(folder, module, json.loads((folder / "config.json").read_text()))


def run(module: Any, rows: list[list[int]], segments: list[list[int]] | None = None, padding: int = 0) -> Any:
    """The module's own outputs on a padded batch, with attentions and hidden states."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [padding] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    inputs = {"input_ids": ids, "attention_mask": mask}
    if segments is not None:
        inputs["token_type_ids"] = torch.tensor([row + [0] * (longest - len(row)) for row in segments])
    with torch.inference_mode():
        return module(**inputs, output_attentions=True, output_hidden_states=True)


RENAMED = {"logits": "prediction_logits", "seq_relationship_logits": "logits"}
"""What headscope calls an output -> what some classes of transformers call it."""


def assert_same(trace: Trace, outputs: Any, row: int = 0, limit: float = 2e-5) -> None:
    """Every head's weights, every hidden state and everything on top, of one row of a batch, padding left out."""
    size = len(trace)
    for layer, attention in enumerate(outputs.attentions):
        np.testing.assert_allclose(trace[layer].weights[:], attention[row, :, :size, :size].numpy(), atol=limit)
    for state, theirs in zip(trace.hidden_states, outputs.hidden_states, strict=True):
        np.testing.assert_allclose(state, theirs[row, :size].numpy(), atol=limit, rtol=limit)
    for name in trace.outputs:
        if name.startswith("hidden_states") or (name == "pooler_output" and name not in outputs):
            continue  # compared above; a class with something on top doesn't return its pooler's output
        key = name if name in outputs and RENAMED.get(name) not in outputs else RENAMED.get(name, name)
        theirs = (outputs.hidden_states[-1] if name == "last_hidden_state" else outputs[key])[row].numpy()
        if "tokens" in trace.outputs[name].dims:
            theirs = theirs[:size]
        np.testing.assert_allclose(trace.outputs[name], theirs, atol=limit, rtol=limit, err_msg=name)


@functools.cache
def ids(count: int, seed: int = 0) -> tuple[int, ...]:
    """Ids that are no special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(5, 60, (count,), generator=generator).tolist())
