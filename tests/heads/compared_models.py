"""Pairs of checkpoints for tests: copies of the small BERT and of the bundled model with chosen tensors changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from headscope.checkpoint.resolve import BUNDLED
from making import write_safetensors

Edit = Callable[[np.ndarray], np.ndarray]


def edited(folder: Path, edits: Mapping[str, Edit], source: Path = BUNDLED) -> Path:
    """A copy of a checkpoint in which each tensor whose name ends so is what its function makes of it."""
    shutil.copytree(source, folder)
    tensors = {name: np.array(array) for name, array in load_file(folder / "model.safetensors").items()}
    for ending, edit in edits.items():
        names = [name for name in tensors if name.endswith(ending)]
        assert len(names) == 1, (ending, names)
        tensors[names[0]] = edit(tensors[names[0]].copy())
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    return folder


def scaled(rows: slice, factor: float) -> Edit:
    """Some rows multiplied."""

    def edit(array: np.ndarray) -> np.ndarray:
        array[rows] *= np.asarray(factor, array.dtype)
        return array

    return edit
