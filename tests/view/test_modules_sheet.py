"""`headscope shapes MODEL --modules`: the class's own modules, without weights."""

from __future__ import annotations

import json
from pathlib import Path

from commands import run

CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 99,
}


def test_modules_of_a_checkpoint(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    save_file({"embeddings.word_embeddings.weight": np.zeros((99, 32), np.float32)}, tmp_path / "model.safetensors")
    told = run("shapes", tmp_path, "--modules", "--json")
    answer = json.loads(told.stdout)
    assert (answer["class"], answer["total"]) == ("BertModel", 46_368)
    layers = answer["tree"]["parts"][1]["parts"][0]["parts"]
    assert [(part["name"], part["times"]) for part in layers] == [("0-2", 3)]
    displayed = run("shapes", tmp_path, "--modules")
    assert "3 × BertLayer" in displayed.stdout
