"""BERT-base and BERT-large as published: counts, shares, names, order, memory, read from headers of full size."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import python
from headscope.anatomy import read_anatomy
from headscope.anatomy.anatomy_record import memory
from headscope.anatomy.tree import tree
from headscope.checkpoint import open_checkpoint
from making import LARGE, bert_checkpoint

LAYER = (
    [f"attention.self.{part}.{kind}" for part in ("query", "key", "value") for kind in ("weight", "bias")]
    + [f"attention.output.{part}.{kind}" for part in ("dense", "LayerNorm") for kind in ("weight", "bias")]
    + [f"intermediate.dense.{kind}" for kind in ("weight", "bias")]
    + [f"output.{part}.{kind}" for part in ("dense", "LayerNorm") for kind in ("weight", "bias")]
)
NAMES = [
    *(f"embeddings.{part}_embeddings.weight" for part in ("word", "position", "token_type")),
    "embeddings.LayerNorm.weight",
    "embeddings.LayerNorm.bias",
    *(f"encoder.layer.{layer}.{name}" for layer in range(12) for name in LAYER),
    "pooler.dense.weight",
    "pooler.dense.bias",
]


def test_bert_base(tmp_path: Path) -> None:
    anatomy = read_anatomy(open_checkpoint(bert_checkpoint(tmp_path)))
    assert [row.name for row in anatomy.parameters] == NAMES
    assert (len(NAMES), anatomy.parameters.total) == (199, 109_482_240)
    assert [(part.name, part.count, part.share) for part in anatomy.components] == [
        ("embeddings", 23_837_184, 0.21772649152958506),
        ("encoder", 85_054_464, 0.776879099295009),
        ("pooler", 590_592, 0.005394409175405983),
    ]
    assert all(part.meaning for part in anatomy.components)
    assert sum(row.count for row in anatomy.parameters if row.layer == 7) == 7_087_872
    assert anatomy.parameters["embeddings.word_embeddings.weight"].shape == (30522, 768)
    assert anatomy.parameters["encoder.layer.0.intermediate.dense.weight"].shape == (3072, 768)
    assert (anatomy.extra.total, anatomy.missing, anatomy.problems, anatomy.refusals) == (0, (), (), ())
    assert anatomy.known().d_head == 64
    assert anatomy.longest_text == 512


def test_bert_large(tmp_path: Path) -> None:
    anatomy = read_anatomy(open_checkpoint(bert_checkpoint(tmp_path, LARGE)))
    sizes = anatomy.known()
    assert (anatomy.parameters.total, len(anatomy.parameters)) == (335_141_888, 391)
    assert (sizes.layers, sizes.heads, sizes.d_head, sizes.d_ffn) == (24, 16, 64, 4096)
    for layer in range(24):
        for part in ("query", "key", "value", "attention_output"):
            assert anatomy.parameter(f"layer.{part}.weight", layer).shape == (1024, 1024)
            assert anatomy.parameter(f"layer.{part}.bias", layer).shape == (1024,)


def test_published_file(tmp_path: Path) -> None:
    anatomy = read_anatomy(open_checkpoint(bert_checkpoint(tmp_path, published=True)))
    assert [row.name for row in anatomy.parameters] == NAMES
    assert anatomy.parameters["embeddings.LayerNorm.weight"].stored == "bert.embeddings.LayerNorm.gamma"
    counts = {row.name: row.count for row in anatomy.extra}
    assert counts == {
        "cls.predictions.bias": 30_522,
        "cls.predictions.transform.dense.weight": 589_824,
        "cls.predictions.transform.dense.bias": 768,
        "cls.predictions.transform.LayerNorm.weight": 768,
        "cls.predictions.transform.LayerNorm.bias": 768,
        "cls.seq_relationship.weight": 1_536,
        "cls.seq_relationship.bias": 2,
    }
    assert anatomy.parameters.total + anatomy.extra.total == 110_106_428
    assert anatomy.tasks == ("masked_lm", "next_sentence")
    assert anatomy.refusals == ()
    assert tree(anatomy).name == "BertForPreTraining"


def test_memory(tmp_path: Path) -> None:
    sizes = memory(read_anatomy(open_checkpoint(bert_checkpoint(tmp_path, published=True))))
    base, whole = 109_482_240, 110_106_428
    assert sizes == {
        "fp32": (4 * base, 4 * whole),
        "fp16": (2 * base, 2 * whole),
        "bf16": (2 * base, 2 * whole),
        "int8": (base, whole),
        "as stored": (4 * base, 4 * whole),
    }


def test_collapsed_tree_counts_everything(tmp_path: Path) -> None:
    root = tree(read_anatomy(open_checkpoint(bert_checkpoint(tmp_path))))
    assert (root.name, root.count) == ("BertModel", 109_482_240)
    layer = root.children[1].children[0].children[0]
    assert (layer.name, layer.label, layer.count, layer.total) == ("0-11", "12 x BertLayer", 7_087_872, 85_054_464)
    assert [child.label for child in root.children[0].children] == [
        "Embedding(30522, 768)",
        "Embedding(512, 768)",
        "Embedding(2, 768)",
        "LayerNorm(768, eps=1e-12)",
        "Dropout(0.1)",
    ]


@pytest.mark.parametrize("heavy", ["numpy", "torch", "transformers", "tokenizers", "rich", "typer"])
def test_the_header_needs_no_arrays(tmp_path: Path, heavy: str) -> None:
    code = (
        "import sys; from headscope.anatomy import *; from headscope.checkpoint import open_checkpoint as o;"
        "from headscope.anatomy.fit import fit; from headscope.anatomy.glossary import explain_config;"
        "from headscope.anatomy.anatomy_record import memory; from headscope.anatomy.tree import tree;"
        "c = o(sys.argv[1]); a = read_anatomy(c); explain_config(a), tree(a), memory(a), fit(a, 'BertForMaskedLM'),"
        f"layers_of(c, a)[0].heads[3]; assert {heavy!r} not in sys.modules"
    )
    python(code, bert_checkpoint(tmp_path))
