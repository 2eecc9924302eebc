"""Random checkpoints with a vocabulary and something on top, and their passes in transformers with heads changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headscope as hs
from headscope.checkpoint.resolve import BUNDLED
from headscope.runs.engine import Edit
from random_models import Made, made, run
from small_bert import VOCABULARY

WORDS = (*VOCABULARY, *(f"word{at}" for at in range(60 - len(VOCABULARY))))
TEXT = "the cat [MASK] on the mat and sat down ."
NAMES = {"0": "bad", "1": "fair", "2": "good"}


def readable(folder: Path, stem: str, suffix: str, **config: Any) -> Made:
    """A random checkpoint whose tokenizer is BERT's with the words of the small one; labels have names."""
    if suffix in ("ForSequenceClassification", "ForTokenClassification") and "num_labels" not in config:
        config["id2label"] = NAMES
    checkpoint = made(folder, stem, suffix, **config)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return checkpoint


def bi_encoder(mode: str, normalised: bool = False, folder: Path = BUNDLED, **options: Any) -> Any:
    """A model of sentence-transformers over another; imported late, for most workers run no test with it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    transformer = Transformer(str(folder))
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling_mode=mode)]
    return SentenceTransformer(modules=modules + [Normalize()] * normalised, device="cpu", **options)


def captured_trace(module: Any, ids: Sequence[int], *, hidden_states: bool = False, **options: Any) -> hs.Trace:
    """The trace that a capture with these options has of a module's pass over one text."""
    with hs.capture(module, **options) as captured:
        module(input_ids=torch.tensor([ids]), output_hidden_states=hidden_states)
    return captured.trace


def edited_pass(module: Any, ids: list[int], edits: Iterable[Edit], other: Sequence[torch.Tensor] = ()) -> Any:
    """A BERT's pass with the input of each layer's W_O changed by head; `other` has another pass's inputs."""
    hooks, width = [], module.config.hidden_size // module.config.num_attention_heads
    for at, layer in enumerate(module.base_model.encoder.layer):
        seen: dict[str, torch.Tensor] = {}
        hooks += [
            getattr(layer.attention.self, role).register_forward_hook(
                lambda _, __, out, role=role, seen=seen: seen.update({role: out[0]})
            )
            for role in ("query", "key", "value")
        ]

        def change(_: Any, given: tuple[torch.Tensor], at: int = at, seen: Any = seen) -> tuple[torch.Tensor]:
            context = given[0].clone()
            for edit in edits:
                if edit.layer == at:
                    span = slice(edit.head * width, (edit.head + 1) * width)
                    part = context[0, :, span]
                    if edit.do == "edge":
                        q, k, v = (seen[role][:, span] for role in ("query", "key", "value"))
                        scores = q @ k.T / width**0.5
                        scores[edit.edge] = float("-inf")
                        changed = torch.where(
                            torch.arange(len(q))[:, None] == edit.edge[0], scores.softmax(-1) @ v, part
                        )
                    else:
                        changed = {
                            "zero": lambda part=part: 0 * part,
                            "mean": lambda part=part: part.mean(0, keepdim=True).expand_as(part),
                            "patch": lambda span=span: other[at][0, :, span],
                        }[edit.do]()
                    context[0, :, span] = changed
            return (context,)

        hooks.append(layer.attention.output.dense.register_forward_pre_hook(change))
    result = run(module, [ids])
    for hook in hooks:
        hook.remove()
    return result


def in_torch(module: Any, ids: list[int], edits: Iterable[Edit], other: Sequence[torch.Tensor]) -> np.ndarray:
    """The last hidden state of such a pass."""
    return np.asarray(edited_pass(module, ids, edits, other).hidden_states[-1][0].numpy())


def contexts_in_torch(module: Any, ids: list[int]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    hooks = [
        layer.attention.output.dense.register_forward_pre_hook(lambda _, given: found.append(given[0].clone()))
        for layer in module.bert.encoder.layer
    ]
    run(module, [ids])
    for hook in hooks:
        hook.remove()
    return found
