"""Exports of small models to ONNX."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

NAMES = ("input_ids", "attention_mask", "token_type_ids")


class Base(torch.nn.Module):
    """The model with the arguments and the output that an export has."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state


def export(model: Any, path: Path, attention: str = "eager", *, opset: int = 17, dynamo: bool = False) -> Path:
    """Export with dynamic sizes of texts and tokens."""
    model.set_attn_implementation(attention)
    ids = torch.arange(18).reshape(2, 9)
    given = (ids, torch.ones_like(ids), torch.zeros_like(ids))
    options: dict[str, Any] = {"dynamic_axes": {name: {0: "b", 1: "s"} for name in NAMES}}
    if dynamo:
        sizes = {0: torch.export.Dim("b", min=1, max=64), 1: torch.export.Dim("s", min=2, max=64)}
        options = {"dynamic_shapes": [sizes] * 3, "verbose": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Base(model).eval(), given, str(path), input_names=list(NAMES), output_names=["last_hidden_state"],
            opset_version=opset, dynamo=dynamo, **options,
        )  # fmt: skip
    return path


def quantise(source: Path, target: Path, **options: Any) -> None:
    """Write a file again with int8 matrices, by onnxruntime, which takes its time to import."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, target, weight_type=QuantType.QInt8, **options)
