"""A folder with an adapter beside the base weights, as peft saves it into the model's own folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import headscope as hs
from commands import run
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import UnsupportedError

TEXT = "The cat sat."


def test_weights_with_an_adapter_beside_them_are_not_taken_for_the_model(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BUNDLED, tmp_path / "model"))
    name = "base_model.model.encoder.layer.0.attention.self.query.lora_{}.weight"
    ranks = {name.format("A"): np.ones((2, 192), np.float32), name.format("B"): np.ones((192, 2), np.float32)}
    save_file(ranks, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "base_model_name_or_path": str(folder), "r": 2, "target_modules": ["query"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    model = hs.open(folder)
    assert model.parameters.total == hs.open().parameters.total
    for ask in (lambda: model.trace(TEXT), lambda: model.layers[0].heads[0].W_Q, lambda: hs.match(model, TEXT, TEXT)):
        with pytest.raises(UnsupportedError, match=r"an adapter .* lies beside the weights") as raised:
            ask()
        assert "model.safetensors" in str(raised.value.advice)
    result = run("summary", folder)
    assert "an adapter (LoRA or similar) lies beside the weights" in " ".join(result.output.split())
    plain = hs.open(folder / "model.safetensors")
    assert np.array_equal(plain.trace(TEXT)[0, 1].q, hs.open().trace(TEXT)[0, 1].q)
