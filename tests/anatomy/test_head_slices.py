"""Heads as slices: the paper's orientation, side by side the whole weight, and only a head's rows are read."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from fake_checkpoint import TINY_CONFIGS, FakeCheckpoint, class_header

from headscope.anatomy import Anatomy, layers_of, read_anatomy
from headscope.anatomy.heads import HEAD_SLICES, OutOfRangeError
from headscope.checkpoint import Checkpoint

STEMS = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "electra": "Electra"}


def opened(kind: str) -> tuple[FakeCheckpoint, Checkpoint, Anatomy]:
    config, header = class_header(f"{STEMS[kind]}Model")
    generator = np.random.default_rng(5)
    arrays = {name: generator.normal(size=shape).astype(np.float32) for name, shape in header.items()}
    checkpoint = FakeCheckpoint(config, header, arrays=arrays)
    return checkpoint, cast(Checkpoint, checkpoint), read_anatomy(cast(Checkpoint, checkpoint))


@pytest.mark.parametrize("kind", STEMS)
def test_slices_are_the_papers(kind: str) -> None:
    fake, checkpoint, anatomy = opened(kind)
    d = anatomy.known().d_head
    assert (d, TINY_CONFIGS[kind].get("hidden_size", TINY_CONFIGS[kind].get("dim"))) == (4, 12)
    for layer in layers_of(checkpoint, anatomy):
        stored = {role: fake.arrays[anatomy.parameter(role, layer.index).stored] for _, role, _ in HEAD_SLICES}
        for h, head in enumerate(layer.heads):
            span = slice(h * d, (h + 1) * d)
            np.testing.assert_array_equal(head.W_Q, stored["layer.query.weight"].T[:, span])
            np.testing.assert_array_equal(head.W_K, stored["layer.key.weight"].T[:, span])
            np.testing.assert_array_equal(head.W_V, stored["layer.value.weight"].T[:, span])
            np.testing.assert_array_equal(head.W_O, stored["layer.attention_output.weight"].T[span])
            np.testing.assert_array_equal(head.b_Q, stored["layer.query.bias"][span])
            np.testing.assert_array_equal(head.b_K, stored["layer.key.bias"][span])
            np.testing.assert_array_equal(head.b_V, stored["layer.value.bias"][span])
        np.testing.assert_array_equal(
            np.concatenate([head.W_Q for head in layer.heads], axis=1), stored["layer.query.weight"].T
        )
        np.testing.assert_array_equal(
            np.concatenate([head.W_O for head in layer.heads], axis=0), stored["layer.attention_output.weight"].T
        )
        np.testing.assert_array_equal(
            layer.b_O, fake.arrays[anatomy.parameter("layer.attention_output.bias", layer.index).stored]
        )


def test_only_a_heads_rows_are_read() -> None:
    fake, checkpoint, anatomy = opened("bert")
    head = layers_of(checkpoint, anatomy)[1].heads[2]
    assert fake.reads == [], "nothing is read until it is asked for"
    assert (head.W_Q.shape, head.W_O.shape) == ((12, 4), (4, 12))
    assert fake.reads == [
        ("encoder.layer.1.attention.self.query.weight", slice(8, 12), None),
        ("encoder.layer.1.attention.output.dense.weight", None, slice(8, 12)),
    ]


@pytest.mark.parametrize(("layer", "head"), [(2, 0), (-3, 0), (0, 3), (0, -4), (10**9, 0)])
def test_heads_that_are_not_there(layer: int, head: int) -> None:
    _, checkpoint, anatomy = opened("bert")
    with pytest.raises(
        OutOfRangeError, match=r"there is no (layer|head) -?\d+: \w+ ?\d? has \d (layer|head)s"
    ) as caught:
        layers_of(checkpoint, anatomy)[layer].heads[head]
    assert "count from 0" in str(caught.value)


def test_counting_from_the_end() -> None:
    _, checkpoint, anatomy = opened("bert")
    layers = layers_of(checkpoint, anatomy)
    assert (layers[-1].index, layers[-1].heads[-1].index, len(layers[0:1])) == (1, 2, 1)
    assert repr(layers) == "2 layers of BertModel, counted from 0"
    assert "W_Q, W_K, W_V (12, 4)" in repr(layers[0].heads[0])
