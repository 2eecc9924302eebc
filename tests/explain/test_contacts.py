"""Contacts of a protein model against transformers' predict_contacts, without maps in memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import headscope as hs
from headscope.errors import InputError, TraceError, UnsupportedError
from random_models import ids, made

SEQUENCE = (0, *ids(40), 2)


@pytest.mark.parametrize("row", [SEQUENCE, (0, *ids(9), 2, *ids(4), 2), (0, 7, 2), (0, *ids(6))])
def test_contacts_are_transformers(tmp_path: Path, row: tuple[int, ...]) -> None:
    """Also with an <eos> inside the sequence, with one residue, and without <eos>."""
    checkpoint = made(tmp_path, "Esm", "ForMaskedLM", token_dropout=False)
    tokens = torch.tensor([row])
    with torch.inference_mode():
        expected = checkpoint.module.predict_contacts(tokens, torch.ones_like(tokens))[0].numpy()
    found = hs.open(tmp_path).trace(ids=row).contacts()
    assert found.dims == ("residues", "residues")
    np.testing.assert_allclose(found.array, expected, atol=1e-5)
    assert found.labels is not None
    assert len(found.labels) == len(row) - 2


def test_contacts_keep_no_maps(tmp_path: Path) -> None:
    """600 tokens, 12 heads: all maps are 17 MB, and the result with its sums and one block is less than half of it."""
    made(tmp_path, "Esm")
    trace = hs.open(tmp_path).trace(ids=(0, *ids(598), 2))
    trace.contacts()
    tracemalloc.start()
    trace.contacts()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    result = 598 * 598 * 8
    assert peak < 5 * result + 8 * 2**20
    assert peak < 3 * 4 * 600 * 600 * 8


def test_without_a_contact_head(tmp_path: Path) -> None:
    made(tmp_path / "bert", "Bert")
    with pytest.raises(UnsupportedError, match="has no contact head"):
        hs.open(tmp_path / "bert").trace(ids=SEQUENCE).contacts()
    made(tmp_path / "esm", "Esm")
    file = tmp_path / "esm" / "model.safetensors"
    state = {name: tensor for name, tensor in load_file(file).items() if "contact_head" not in name}
    save_file(state, file, {"format": "pt"})
    model = hs.open(tmp_path / "esm")
    assert model.anatomy.missing == ()
    with pytest.raises(UnsupportedError, match="has no contact head"):
        model.trace(ids=SEQUENCE).contacts()


def test_too_short_or_without_a_model(tmp_path: Path) -> None:
    made(tmp_path, "Esm")
    trace = hs.open(tmp_path).trace(ids=[0, 2])
    with pytest.raises(InputError, match="no residue"):
        trace.contacts()
    trace.save(tmp_path / "trace.safetensors")
    with pytest.raises(TraceError, match="has no model"):
        hs.load(tmp_path / "trace.safetensors").contacts()
