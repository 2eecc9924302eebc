"""Tokens of transformers models, and of models around them: followed once, known from then on, and never mistaken."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from comparing import captured_of, own
from test_following import ids_of
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers.models.bert import modeling_bert

import headscope as hs
from families import BART, BY_NAME, Family, towers
from headscope.live import capture
from headscope.live.genuine import from_library
from headscope.live.names.sources import memory_of

BERT = BY_NAME["BertModel"]
IDS = ids_of(2, 7, seed=3) + 3


def around(forward: Callable[..., Any]) -> Any:
    """A model around BERT that changes its inputs."""
    return own(forward, bert=BERT.build())


def flipped(self: Any, input_ids: torch.Tensor, token_type_ids: Any = None, attention_mask: Any = None) -> Any:
    return self.bert(inputs_embeds=self.bert.embeddings.word_embeddings(input_ids).flip(1))


def rows(captured: Any) -> list[list[int]]:
    return [list(trace.ids) for trace in captured.traces]


def test_rows_in_another_order_have_their_own_words_and_segments() -> None:
    types = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1]])

    def forward(self: Any, input_ids: torch.Tensor, token_type_ids: torch.Tensor) -> Any:
        return self.bert(input_ids.flip(0), token_type_ids=token_type_ids.flip(0))

    captured = captured_of(around(forward), IDS, types)
    assert rows(captured) == IDS.flip(0).tolist()
    assert [list(trace.segments) for trace in captured.traces] == types.flip(0).tolist()
    assert captured.traces[0].verify().agrees


def test_vectors_that_a_model_embeds_itself() -> None:
    def prefixed(self: Any, ids: torch.Tensor) -> Any:
        words = self.bert.embeddings.word_embeddings(ids)
        return self.bert(inputs_embeds=torch.cat([torch.ones(len(ids), 2, 32), words], 1))

    assert rows(captured_of(around(flipped), IDS)) == IDS.flip(1).tolist()
    captured = captured_of(around(prefixed), IDS)
    assert rows(captured) == [[-1, -1, *row] for row in IDS.tolist()]
    assert captured.traces[0].tokens[:3] == ("[0]", "[1]", str(int(IDS[0, 0])))


def test_vectors_that_are_given_have_no_names_whatever_ran_before() -> None:
    model = BERT.build()
    with torch.no_grad(), capture(model) as captured:
        model(input_ids=IDS)
        model(inputs_embeds=torch.randn(2, 7, 32))
        model(inputs_embeds=torch.randn(2, 7, 32), token_type_ids=IDS % 2)
        model(input_ids=IDS.flip(0))
    assert rows(captured) == [*IDS.tolist(), *[[-1] * 7] * 4, *IDS.flip(0).tolist()]


def test_a_block_is_followed_once_and_then_known() -> None:
    model = BERT.build()
    for ids in (IDS, IDS.flip(0), IDS.flip(1)):
        assert rows(captured_of(model, ids)) == ids.tolist()
    blocks = memory_of(model).blocks
    assert len(blocks) == len(model.encoder.layer)
    assert rows(captured_of(model, IDS[:, :4])) == IDS[:, :4].tolist()
    assert len(blocks) == 2 * len(model.encoder.layer)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("way", ["hook", "hook inside", "forward"])
def test_a_block_that_somebody_changed_is_followed(way: str, known: bool) -> None:
    """The first layer's output is flipped: from then on, no place holds the same token in all layers."""
    model = BERT.build()
    first = model.encoder.layer[0]
    if known:
        assert rows(captured_of(model, IDS)) == IDS.tolist()
    if way == "forward":
        before = first.forward
        first.forward = lambda *args, **kwargs: before(*args, **kwargs).flip(1)
    else:
        part = first if way == "hook" else first.output
        part.register_forward_hook(lambda module, args, output: output.flip(1))
    captured = captured_of(model, IDS)
    assert [[number for at, number in enumerate(row) if at != 3] for row in rows(captured)] == [[-1] * 6] * 2
    with torch.no_grad(), capture(model, layers=[1]) as second:
        model(input_ids=IDS)
    assert rows(second) == IDS.flip(1).tolist()


def test_a_text_and_an_image_of_as_many_tokens() -> None:
    family = Family("CLIPModel", towers(projection_dim=16), takes="text and image")
    model, inputs = family.build(), family.inputs(padded=False)
    inputs["input_ids"] = ids_of(2, 17, seed=4)
    captured = captured_of(model, **inputs)
    assert [list(trace.ids) for trace in captured["text_model"]] == inputs["input_ids"].tolist()
    for trace in captured["vision_model"]:
        assert set(trace.ids) == {-1}
        assert trace.tokens[:3] == ("[CLS]", "patch 0,0", "patch 0,1")
        assert trace.tokens[-1] == "patch 3,3"


def test_patches_that_are_moved() -> None:
    """As a masked autoencoder shuffles them."""

    def forward(self: Any, image: torch.Tensor) -> torch.Tensor:
        x = self.cut(image).flatten(2).mT[:, [3, 1, 0, 2]]
        return self.layers(torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1))

    captured = captured_of(
        own(
            forward,
            cut=nn.Conv2d(3, 16, 4, 4),
            cls_token=nn.Parameter(torch.randn(1, 1, 16)),
            layers=nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 1),
        ),
        torch.randn(2, 3, 8, 8),
    )
    names = ("[CLS]", "patch 1,1", "patch 0,1", "patch 0,0", "patch 1,0")
    assert [trace.tokens for trace in captured.traces] == [names] * 2


CHANGED: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "as it was": (lambda states: None, IDS),
    "flipped": (lambda states: states.copy_(states.flip(1).clone()), IDS.flip(1)),
    "another's": (lambda states: states.add_(1), torch.full_like(IDS, -1)),
}
"""What somebody does to an encoder's output, and the ids of its places then."""


@pytest.mark.parametrize("way", CHANGED)
def test_an_encoders_output_is_recognised_where_it_is_used(way: str) -> None:
    model = Family("BartModel", BART, takes="both").build()
    change, expected = CHANGED[way]
    with torch.no_grad(), capture(model) as captured:
        encoded = model.encoder(input_ids=IDS)
        change(encoded.last_hidden_state)
        model(encoder_outputs=encoded, decoder_input_ids=IDS[:, :3])
    assert [list(trace.keys.ids) for trace in captured["cross"]] == expected.tolist()


@pytest.mark.parametrize("name", ["MixtralModel", "MobileBertModel", "AlbertModel", "DebertaV2Model"])
def test_names_are_verified(name: str) -> None:
    family = BY_NAME[name]
    captured = captured_of(family.build(), **family.inputs(padded=True))
    for trace in captured.traces:
        report = trace.verify()
        assert report.agrees
        assert ("tokens" in dict(report.skipped)) == (name == "MobileBertModel")  # of three words each


def test_one_text_whose_tokens_the_model_moves() -> None:
    """Words and spans are those of the tokenizer's tokens, so only its own order has them."""
    from test_live import tokenizer

    plain = hs.trace(BERT.build(), "the cat", tokenizer=tokenizer())
    assert plain.tokens == ("[CLS]", "the", "cat", "[SEP]")
    assert plain.words is not None
    moved = hs.trace(around(flipped), "the cat", tokenizer=tokenizer())
    assert moved.tokens == ("[SEP]", "cat", "the", "[CLS]")
    assert set(moved.queries.words) == {None}


class Words(nn.Module):
    """An encoder of PyTorch's with words of its own."""

    def __init__(self, activation: Any = "relu") -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation=activation)
        self.words, self.encoder = nn.Embedding(50, 16), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.eval()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.words(ids))


def reversing(x: torch.Tensor) -> torch.Tensor:
    return x.flip(1) - x


class Switch:
    """A function with a state: it reverses the order of the tokens once it is on."""

    on = False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.flip(1) if self.on else x


DROPOUT = nn.functional.dropout
CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any, pytest.MonkeyPatch], None]]] = {
    "a method of a layer": (Words, lambda model, patch: patch.setattr(model.encoder.layers[0], "_ff_block", reversing)),
    "a method of its class": (
        Words,
        lambda model, patch: patch.setattr(nn.TransformerEncoderLayer, "_ff_block", lambda self, x: reversing(x)),
    ),
    "an activation": (
        Words,
        lambda model, patch: patch.setattr(model.encoder.layers[0], "activation", lambda x: x.flip(1)),
    ),
    # Each layer has a copy of it.
    "an activation with a state": (lambda: Words(Switch()), lambda model, patch: patch.setattr(Switch, "on", True)),
    "a function of PyTorch": (
        Words,
        lambda model, patch: patch.setattr(nn.functional, "dropout", lambda x, *rest: DROPOUT(x, *rest).flip(1)),
    ),
    "a function of the module's file": (
        BERT.build,
        lambda model, patch: patch.setattr(
            modeling_bert, "apply_chunking_to_forward", lambda f, size, axis, x: f(x).flip(1)
        ),
    ),
    # Without it the block has other code run: the norm's place is a plain setting of a layer.
    "a setting": (Words, lambda model, patch: patch.setattr(model.encoder.layers[0], "norm_first", True)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_remembered_of_changed_code(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that was captured before has the names that a new one would: none where a layer reverses the tokens."""
    build, apply = CHANGES[change]
    model = build()
    remembered = memory_of(model)
    before = rows(captured_of(model, IDS))
    assert before == IDS.tolist()
    blocks = len(remembered.blocks)
    apply(model, monkeypatch)
    after = rows(captured_of(model, IDS))
    if change == "a setting":
        assert after == before
        assert len(remembered.blocks) > blocks
    else:
        assert [[number for at, number in enumerate(row) if at != 3] for row in after] == [[-1] * 6] * 2


# Operators that are observed as well: attention itself, and products of batches.

SHUFFLED = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:12].reshape(2, 6)


def layered(norm: Callable[[torch.Tensor], torch.Tensor], between: Callable[..., torch.Tensor]) -> Any:
    """Layers of two heads of 8 without residual streams: nothing carries the tokens around them."""

    def attend(self: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = torch.einsum("bsd,pdhe->pbhse", norm(x), self.weight)
        return self.out(sdpa(q, k, v).transpose(1, 2).flatten(2))

    def forward(self: Any, ids: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.words(ids)
        for at, layer in enumerate(self.layers):
            x = between(layer(x), at)
        return x

    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(3, 16, 2, 8) / 4) for _ in range(3)]
    layers = nn.ModuleList(own(attend, weight=weight, out=nn.Linear(16, 16)) for weight in weights)
    return own(forward, words=nn.Embedding(40, 16), layers=layers)


NORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "layer_norm": lambda x: nn.functional.layer_norm(x, (16,)),
    "native_layer_norm": lambda x: torch.native_layer_norm(x, (16,), None, None, 1e-5)[0],
}


@pytest.mark.parametrize("norm", NORMS)
def test_contexts_stand_for_their_queries(norm: str) -> None:
    model = layered(NORMS[norm], lambda x, at: x)
    captured = captured_of(model, SHUFFLED)
    assert [list(trace.ids) for trace in captured.traces] == SHUFFLED.tolist()


@pytest.mark.parametrize("axis", [0, 1])
def test_tokens_that_move_between_layers_are_not_named(axis: int) -> None:
    model = layered(NORMS["none"], lambda x, at: x.flip(axis) if at == 0 else x)
    captured = captured_of(model, SHUFFLED)
    assert all(number == -1 for trace in captured.traces for number in trace.ids)


def test_a_librarys_function_whose_closure_has_itself() -> None:
    def countdown(n: int) -> int:
        return countdown(n - 1) if n else 0

    assert countdown(2) == 0
    assert not from_library(countdown)
    assert countdown.__closure__ is not None
    twin = FunctionType(countdown.__code__, vars(torch.nn.functional), "countdown", None, countdown.__closure__)
    countdown.__closure__[0].cell_contents = twin
    assert not from_library(twin)  # its code is not in the library's file
    assert from_library(nn.Linear.forward)


def test_a_parameter_that_is_made_in_the_pass() -> None:
    model = layered(NORMS["none"], lambda x, at: nn.Parameter(x) if at == 0 else x)
    captured = captured_of(model, SHUFFLED)
    assert all(number == -1 for trace in captured.traces for number in trace.ids)
