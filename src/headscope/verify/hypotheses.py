"""Faults of an encoder's implementation, by name, and passes of the NumPy encoder that do so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.encoder import Encoder, Input, rows_of
from headscope.errors import InputError
from headscope.runs.texts import batches, prepared

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.checkpoint.tokenizer import Encoded
    from headscope.model import Model

    Tokens = Float[np.ndarray, "tokens d_model"]
    Vectors = Float[np.ndarray, "texts d_model"]

PROMPTS = (
    "query: ",
    "passage: ",
    "search_query: ",
    "search_document: ",
    "clustering: ",
    "classification: ",
    "Represent this sentence for searching relevant passages: ",
)
"""Prefixes that published embedding models were trained with."""

CUTS = (16, 32, 64, 128, 256, 384, 512, 1024)
EPSILONS = (1e-12, 1e-7, 1e-6, 1e-5)
EXACT, BY_TANH = ("gelu", "gelu_python"), ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")


@dataclass(frozen=True)
class Variant:
    """One way of making a text's vector.

    Attributes:
        mode: `mean`, `cls` or `last`: the last token's vector.
        normalized: True to divide the vector by its length.
        padding: `none`; `counted` in the mean, though attention doesn't see it; `seen` by attention, though the mean
            leaves it out; `both`. The batch is padded to its longest text.
        specials: False to leave out the tokens that the tokenizer adds.
        prompt: put before every text.
        lowercase: True to lower-case texts.
        cut: tokens that a text is cut to; None for the model's own limit.
        token_type: of every token.
        shift: added to every position.
        settings: headscope's name of a config field -> another value.
        without: a layer that is left out.
    """

    mode: str
    normalized: bool
    prompt: str
    lowercase: bool
    padding: str = "none"
    specials: bool = True
    cut: int | None = None
    token_type: int | None = None
    shift: int = 0
    settings: tuple[tuple[str, Any], ...] = ()
    without: int | None = None


@dataclass(frozen=True)
class Hypothesis:
    """A fault of an implementation.

    Attributes:
        name: a clause whose subject is the implementation.
        changes: fields of a Variant.
    """

    name: str
    changes: Mapping[str, Any]

    def with_(self, other: Hypothesis) -> Hypothesis | None:
        """Both at once; None if they contradict each other."""
        if self.changes.keys() & other.changes.keys():
            return None
        return Hypothesis(f"{self.name}, and it {other.name}", {**self.changes, **other.changes})


def hypotheses(model: Model) -> Iterator[Hypothesis]:
    """Everything that an implementation of this model may do otherwise, the commonest first."""
    pooling, anatomy = model.pooling, model.anatomy
    modes = {"mean": "pools the mean", "cls": "pools the first token", "last": "pools the last token"}
    yield from (Hypothesis(name, {"mode": mode}) for mode, name in modes.items() if mode != pooling.mode)
    yield Hypothesis(
        "doesn't normalise" if pooling.normalized else "normalises", {"normalized": not pooling.normalized}
    )
    yield Hypothesis("counts padding in the mean", {"padding": "counted"})
    yield Hypothesis("ignores the attention mask", {"padding": "seen"})
    yield Hypothesis("ignores the attention mask and counts padding in the mean", {"padding": "both"})
    yield Hypothesis("leaves out the special tokens", {"specials": False})
    if pooling.prompt:
        yield Hypothesis(f"leaves out the prompt {pooling.prompt!r}", {"prompt": ""})
    yield from (Hypothesis(f"adds the prompt {one!r}", {"prompt": one}) for one in PROMPTS if one != pooling.prompt)
    yield Hypothesis(
        *(
            ("keeps upper case", {"lowercase": False})
            if pooling.lowercase
            else ("lower-cases texts", {"lowercase": True})
        )
    )
    yield from (Hypothesis(f"cuts texts to {cut} tokens", {"cut": cut}) for cut in CUTS)
    if (anatomy.known().types or 0) > 1:
        yield Hypothesis("sets every token type to 1", {"token_type": 1})
    if anatomy.has("embeddings.position.weight"):
        yield from (Hypothesis(f"counts positions from {at:+d}", {"shift": at}) for at in (1, 2, -1))
    yield from _settings(model)
    layers = anatomy.known().layers
    yield from (Hypothesis(f"lacks layer {layer}", {"without": layer}) for layer in range(layers) if layers > 1)


def _settings(model: Model) -> Iterator[Hypothesis]:
    """Other activations and epsilons, if the family's config has fields for them."""
    fields = model.anatomy.family.config if model.anatomy.family is not None else {}
    if "activation" in fields:
        now = model.anatomy.setting("activation")
        if now in EXACT:
            yield Hypothesis("computes GELU by tanh", {"settings": (("activation", BY_TANH[0]),)})
        if now in BY_TANH:
            yield Hypothesis("computes GELU exactly", {"settings": (("activation", EXACT[0]),)})
    if "norm_eps" in fields:
        own = float(model.anatomy.setting("norm_eps"))
        others = (eps for eps in EPSILONS if abs(eps - own) > eps / 10)
        yield from (Hypothesis(f"has a norm epsilon of {eps:g}", {"settings": (("norm_eps", eps),)}) for eps in others)


class Replay:
    """Runs a checkpoint's encoder in variants over the same texts.

    Args:
        model: the checkpoint.
        texts: the texts.
        max_length: cut texts to this many tokens; the model's own limits count too.
    """

    def __init__(self, model: Model, texts: Sequence[str], max_length: int | None = None) -> None:
        pooling = model.pooling
        self.plain = Variant(pooling.mode, pooling.normalized, pooling.prompt, pooling.lowercase)
        self.model, self._texts, self._max_length = model, texts, max_length
        self._kept: dict[Variant, list[Tokens]] = {}

    def vectors(self, variant: Variant) -> Vectors:
        """(texts, d_model): every text's vector.

        Raises:
            InputError: no token is left of a text, or the model can't be run so.
        """
        passes = replace(variant, mode="", normalized=False)
        if passes not in self._kept:
            self._kept[passes] = self._states(passes)
        rows = [self._pooled(states.astype(np.float64), variant.mode) for states in self._kept[passes]]
        vectors = np.stack(rows)
        if variant.normalized:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
        return vectors

    @staticmethod
    def _pooled(states: Float[np.ndarray, "tokens d_model"], mode: str) -> Float[np.ndarray, " d_model"]:
        return states.mean(0) if mode == "mean" else states[0 if mode == "cls" else -1]

    def _states(self, variant: Variant) -> list[Tokens]:
        """The last hidden states of the tokens that are pooled, text by text."""
        encoded = [self._encoded(text, variant) for text in self._texts]
        encoder = self._encoder(variant)
        longest = max(map(len, encoded))
        inputs = []
        for text in encoded:
            ids, segments = np.array(text.ids, dtype=np.int64), np.array(text.segments, dtype=np.int64)
            if not variant.specials:
                inside = ~np.array(text.special)
                ids, segments = ids[inside], segments[inside]
            if not len(ids):
                raise InputError("no token is left of a text", where="texts", advice="leave this text out")
            segments = segments if variant.token_type is None else np.full_like(segments, variant.token_type)
            if variant.padding != "none":
                more = longest - len(ids)
                ids = np.pad(ids, (0, more), constant_values=self._padding())
                segments = np.pad(segments, (0, more))
            inputs.append(Input(ids, segments))
        real = [len(text) for text in encoded] if variant.padding == "counted" else None
        states = list(_run(encoder, inputs, variant.without, real))
        if variant.padding == "seen":
            states = [last[: len(text)] for last, text in zip(states, encoded, strict=True)]
        skipped = [text.prompt if variant.specials else text.special[: text.prompt].count(False) for text in encoded]
        return [last[prompt:] for last, prompt in zip(states, skipped, strict=True)]

    def _encoded(self, text: str, variant: Variant) -> Encoded:
        """A text's tokens. The variant's prompt and case come instead of the checkpoint's own."""
        pooling = self.model.pooling
        limits = [one for one in (pooling.max_length, variant.cut, self._max_length) if one is not None]
        cut = min(limits, default=None)
        rule = replace(pooling, prompt=variant.prompt, lowercase=variant.lowercase, max_length=cut)
        return prepared(self.model, text, rule=rule).encoded

    def _padding(self) -> int:
        """The id of padding; 0 in models that name none."""
        padding = self.model.tokenizer.pad_id
        return 0 if padding is None else padding

    def _encoder(self, variant: Variant) -> Encoder:
        encoder = self.model.encoder
        if variant.settings:
            family = encoder.anatomy.family
            assert family is not None
            fields = {family.config[name]: value for name, value in variant.settings}
            encoder = encoder.changed(config=fields)
        if variant.shift:
            row = encoder.anatomy.parameter("embeddings.position.weight")
            table = encoder.read(row)
            places = np.clip(np.arange(len(table)) + variant.shift, 0, len(table) - 1)
            encoder = encoder.changed(weights={row.stored: table[places]})
        return encoder


def _run(
    encoder: Encoder, inputs: Sequence[Input], without: int | None, real: Sequence[int] | None
) -> Iterator[Tokens]:
    """The last hidden states of each text, one after another.

    Args:
        encoder: the encoder.
        inputs: the texts.
        without: a layer to leave out.
        real: for each text, how many of its tokens attention sees; None for all.
    """
    numbered = list(enumerate(inputs))
    layers = [layer for layer in range(encoder.anatomy.known().layers) if layer != without]
    for batch in batches(numbered, lambda pair: len(pair[1].ids)):
        texts = [text for _, text in batch]
        rows = rows_of(texts)
        x = encoder.embed(texts)
        for layer in layers:
            if real is None:
                x, _ = encoder.layer(x, layer, rows)
            else:
                x = _masked(encoder, x, layer, rows, [real[at] for at, _ in batch])
        x = encoder.after_layers(x)
        yield from (x[part] for part in rows)


def _masked(encoder: Encoder, x: Tokens, layer: int, rows: Sequence[slice], real: Sequence[int]) -> Tokens:
    """A layer in which padding looks at a text's real tokens, and nobody looks at padding."""
    from headscope.attention.scores import attend, join_heads
    from headscope.encoder.forward import PROJECTIONS

    into = encoder.attention_input(x, layer)
    joined = []
    for part, tokens in zip(rows, real, strict=True):
        angles = encoder.angles(layer, part.stop - part.start)
        q, k, v = (
            encoder.split(encoder.product(into[part], (role,), layer).copy(), role, layer, angles)
            for role in PROJECTIONS
        )
        joined.append(join_heads(attend(q, k[:, :tokens], v[:, :tokens], scale=encoder.scale)[0]))
    return encoder.after_attention(encoder.linear(np.concatenate(joined), "layer.attention_output", layer) + x, layer)
