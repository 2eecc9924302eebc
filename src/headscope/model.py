"""The object that `hs.open` returns: one checkpoint, its anatomy, and the traces it leaves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, overload

from headscope import upward
from headscope.anatomy import Anatomy, Component, Layer, Parameters, check_index, layers_of, read_anatomy
from headscope.checkpoint import Checkpoint, called, open_checkpoint
from headscope.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    from headscope._trace import Named, Trace
    from headscope.anatomy.fit import Fit
    from headscope.anatomy.glossary import ConfigTable
    from headscope.anatomy.heads import Counted
    from headscope.anatomy.memory import Memory
    from headscope.anatomy.tree import Node
    from headscope.checkpoint.sentence import Pooling
    from headscope.checkpoint.tokenizer import Encoded, Tokenizer
    from headscope.encoder import Encoder, Tops
    from headscope.explain.attribution import Attribution
    from headscope.explain.effects import Effects, EffectsOverTexts
    from headscope.explain.similarity import TokenSimilarity
    from headscope.explain.target import Wanted
    from headscope.filling import Filled
    from headscope.verify import Report

BATCH_TOKENS = 4096
"""Most tokens that go through the encoder side by side when there are several texts."""


def open_model(name: str | os.PathLike[str] = "-", *, revision: str | None = None) -> Model:
    """Open a checkpoint: its header and config are read, no weights.

    Args:
        name: a hub id, a folder, a file, or `-` for the bundled model.
        revision: a branch, tag or commit, on the hub.

    Raises:
        NotFoundError: the name leads nowhere.
        InputError: it is no name.
        CheckpointError: the files can't be read as they claim to be.
        ConfigError: the config lacks a size, or holds one that can't be.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise InputError(
            f"{type(name).__name__} is no name",
            where="open",
            advice="pass a hub id, a folder or a file; for a model in memory there is hs.capture",
        )
    checkpoint = open_checkpoint(name, revision=revision)
    return Model(checkpoint, read_anatomy(checkpoint))


class Model:
    """A checkpoint, opened.

    Attributes:
        checkpoint: what is on disk or on the hub.
        anatomy: what it means.
    """

    def __init__(self, checkpoint: Checkpoint, anatomy: Anatomy) -> None:
        self.checkpoint = checkpoint
        self.anatomy = anatomy

    @property
    def name(self) -> str:
        """The name it was opened by."""
        return self.checkpoint.name

    @cached_property
    def fingerprint(self) -> str:
        """Identifies config and header, without reading weights."""
        return self.checkpoint.fingerprint()

    @property
    def parameters(self) -> Parameters:
        """The base model's own parameters, in the class's order."""
        return self.anatomy.parameters

    @property
    def extra(self) -> Parameters:
        """The parameters of what sits on top."""
        return self.anatomy.extra

    @property
    def components(self) -> tuple[Component, ...]:
        """Embeddings, encoder, pooler: counts and shares."""
        return self.anatomy.components

    @property
    def all_parameters(self) -> Parameters:
        """The base model's parameters and those on top of it: `all_parameters.total` counts both."""
        return self.anatomy.all_parameters

    @property
    def extra_components(self) -> tuple[Component, ...]:
        """The parts on top: counts, and shares of what is on top."""
        return self.anatomy.extra_components

    @cached_property
    def config(self) -> ConfigTable:
        """Every field of the config with its meaning and what it implies."""
        from headscope.anatomy.glossary import explain_config

        return explain_config(self.anatomy)

    def memory(self) -> tuple[Memory, ...]:
        """Bytes at fp32, fp16, bf16 and int8, and as stored."""
        from headscope.anatomy.memory import memory

        return memory(self.anatomy)

    def tree(self) -> Node:
        """The module tree, repeats collapsed."""
        from headscope.anatomy.tree import tree

        return tree(self.anatomy)

    def fit(self, class_name: str) -> Fit:
        """What a class of transformers would newly initialise from this checkpoint, and what it would ignore."""
        from headscope.anatomy.fit import fit

        return fit(self.anatomy, class_name)

    @cached_property
    def layers(self) -> Counted[Layer]:
        """The layers, counted from 0; `layers[0].heads[3].W_Q` is read at that moment."""
        return layers_of(self.checkpoint, self.anatomy)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's own tokenizer."""
        from headscope.checkpoint.tokenizer import load_tokenizer

        return load_tokenizer(self.checkpoint)

    @cached_property
    def encoder(self) -> Encoder:
        """The forward pass over this checkpoint's weights."""
        from headscope.encoder import Encoder

        return Encoder(self.checkpoint, self.anatomy)

    @cached_property
    def tops(self) -> Tops:
        """The heads on top."""
        from headscope.encoder import Tops

        return Tops(self.encoder)

    def W_O(self, layer: int, head: int) -> Float[np.ndarray, "d_head d_model"]:
        """(d_head, d_model): a head's rows of the paper's W^O."""
        return self.layers[layer].heads[head].W_O

    @cached_property
    def pooling(self) -> Pooling:
        """The pooling of the tokens' vectors into the text's; the mean where the checkpoint has no modules.json.

        Raises:
            UnsupportedError: the checkpoint pools in a way that headscope doesn't compute.
        """
        from headscope.checkpoint.sentence import read_pooling

        return read_pooling(self.checkpoint)

    def late_outputs(self) -> tuple[str, ...]:
        """The names of what is computed from the last hidden state.

        `sentence_embedding` is among them where the checkpoint has a modules.json that sentence-transformers wrote.
        """
        sentence = ("sentence_embedding",) if self.checkpoint.file("modules.json") is not None else ()
        return (*self.tops.outputs, *sentence)

    def late_output(self, name: str, last_hidden_state: Float[np.ndarray, "tokens d_model"]) -> Named | None:
        """One output on top; None where there is none of that name."""
        if name != "sentence_embedding":
            return self.tops.compute(name, last_hidden_state)
        if not self.pooling.stated:
            return None
        from headscope._trace import Named

        return Named(name, ("d_model",), upward.sentence_embedding(last_hidden_state, self.pooling))

    @overload
    def trace(
        self,
        text: str | None = None,
        pair: str | None = None,
        *,
        words: Sequence[str] | None = None,
        ids: Sequence[int] | None = None,
        segments: Sequence[int] | None = None,
        max_length: int | None = None,
        ablate: Iterable[tuple[int, int]] = (),
        hidden_states: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Trace: ...
    @overload
    def trace(
        self,
        text: list[str],
        pair: list[str] | None = None,
        *,
        max_length: int | None = None,
        ablate: Iterable[tuple[int, int]] = (),
        hidden_states: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Trace]: ...
    def trace(
        self,
        text: str | list[str] | None = None,
        pair: str | list[str] | None = None,
        *,
        words: Sequence[str] | None = None,
        ids: Sequence[int] | None = None,
        segments: Sequence[int] | None = None,
        max_length: int | None = None,
        ablate: Iterable[tuple[int, int]] = (),
        hidden_states: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Trace | list[Trace]:
        """One forward pass, and what it leaves behind.

        Args:
            text: a text, or a list of texts for a list of traces.
            pair: a second text that goes with it, or one for each.
            words: words that are split already, instead of a text; the model's vocabulary cuts each into pieces.
            ids: ready-made ids instead of a text, taken as they are: no special tokens are added.
            segments: 0 or 1 for each of `ids`; all 0 unless told.
            max_length: cut a longer text there. Without it a text beyond the position table is refused.
            ablate: heads to silence, (layer, head): their context is 0.
            hidden_states: also keep the embeddings' output and every layer's, (S, d_model) each, in outputs.
            progress: called with the layers done and all layers, for each batch of texts.

        Raises:
            InputError: an empty text, an id beyond the vocabulary, too many tokens, a head that isn't there.
            UnsupportedError: the heads or the tokenizer of this checkpoint can't be read correctly.
        """
        self.anatomy.computable()
        silenced = self._heads(ablate)
        if isinstance(text, list):
            if words is not None or ids is not None or segments is not None:
                raise InputError(
                    "a list of texts goes with no words, ids or segments",
                    where="trace(text=[…])",
                    advice="pass one of them",
                )
            pairs = self._pairs(text, pair)
            encoded = [
                self._encoded(at, one, other, max_length)
                for at, (one, other) in enumerate(zip(text, pairs, strict=True))
            ]
            return self._run(encoded, list(zip(text, pairs, strict=True)), silenced, hidden_states, progress)
        if isinstance(pair, list):
            raise InputError("one text can't have a list of pairs", where="pair", advice="pass one second text")
        given = [name for name, value in (("text", text), ("words", words), ("ids", ids)) if value is not None]
        if len(given) != 1:
            raise InputError(
                f"a trace starts from one of text, words and ids; {' and '.join(given) or 'none'} given",
                where="trace",
                advice='pass a text: model.trace("The cat sat on the mat.")',
            )
        if text is not None:
            one = self.tokenizer.encode(text, pair, max_length=max_length)
        elif words is not None:
            one = self.tokenizer.encode_words(words, max_length=max_length)
        else:
            one = self.tokenizer.encode_ids(list(ids or ())[:max_length], segments)
        return self._run([one], [(text, pair)], silenced, hidden_states, progress)[0]

    def verify(self, text: str | Trace, pair: str | None = None, *, reference: bool = True) -> Report:
        """One forward pass, computed in independent ways and compared. See headscope.verify.

        Args:
            text: a text, or a trace of this model.
            reference: whether to run transformers too, where it is installed.
        """
        return (self.trace(text, pair) if isinstance(text, str) else text).verify(reference=reference)

    def fill(
        self,
        text: str,
        pair: str | None = None,
        *,
        top: int = 5,
        max_length: int | None = None,
        ablate: Iterable[tuple[int, int]] = (),
    ) -> tuple[Filled, ...]:
        """The best pieces for each mask of a text, with their probabilities. See headscope.filling."""
        return upward.fill(self, text, pair, top=top, max_length=max_length, ablate=ablate)

    def token_similarity(
        self, a: str, b: str, *, rerun: bool = False, max_length: int | None = None
    ) -> TokenSimilarity:
        """Find the tokens that make two texts alike: the parts of a cosine. See headscope.explain.similarity."""
        return upward.token_similarity(self, a, b, rerun=rerun, max_length=max_length)

    @overload
    def effects(
        self,
        text: str,
        target: Wanted = None,
        *,
        pair: str | None = None,
        method: str = "zero",
        patch_from: str | None = None,
        max_length: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Effects: ...
    @overload
    def effects(
        self,
        text: list[str],
        target: Wanted = None,
        *,
        pair: list[str] | None = None,
        method: str = "zero",
        patch_from: list[str] | None = None,
        max_length: int | None = None,
    ) -> EffectsOverTexts: ...
    def effects(self, text: str | list[str], target: Wanted = None, **options: Any) -> Effects | EffectsOverTexts:
        """Silence (or patch) each head in turn, and read one output: exact. See headscope.explain.effects.

        Args:
            text: a text, or a list of texts for their mean with a 95 % interval.
            target: the output; by default the best word at the first mask, else the predicted class, else the text's
                vector. headscope.explain.target lists what may be named.
            options: of effects and effects_over_texts there: pair, method (zero, mean, gradient), patch_from,
                max_length, progress.
        """
        if isinstance(text, list):
            return upward.effects_over_texts(self, text, target, **options)
        return upward.effects(self, text, target, **options)

    def attribute(
        self,
        text: str,
        target: Wanted = None,
        *,
        method: str = "decompx",
        pair: str | None = None,
        max_length: int | None = None,
        steps: int = 32,
    ) -> Attribution:
        """Attribute one output to the input tokens. See headscope.explain.attribution.

        Args:
            text: the text.
            target: the output, as in `effects`.
            method: decompx, alti, attention_gradient or integrated_gradients.
            pair: a second text that goes with it.
            max_length: cut a longer text to this many tokens.
            steps: points of the integral in integrated gradients.
        """
        return upward.attribute(self, text, target, method=method, pair=pair, max_length=max_length, steps=steps)

    def _heads(self, ablate: Iterable[tuple[int, int]]) -> frozenset[tuple[int, int]]:
        sizes = self.anatomy.known()
        pairs = [tuple(one) if isinstance(one, Iterable) else (one,) for one in ablate]
        if odd := next((one for one in pairs if len(one) != 2), None):
            raise InputError(
                f"{odd} names no head", where="ablate", advice="pass pairs of layer and head: ablate={(3, 5)}"
            )
        return frozenset(
            (
                check_index(layer, sizes.layers, "layer", "the model"),
                check_index(head, sizes.heads, "head", f"layer {layer}"),
            )
            for layer, head in pairs
        )

    def _encoded(self, at: int, text: str, pair: str | None, max_length: int | None) -> Encoded:
        """One text of a list.

        Raises:
            InputError: as the tokenizer does, saying which text it is.
        """
        try:
            return self.tokenizer.encode(text, pair, max_length=max_length)
        except InputError as error:
            where = f"{error.where}[{at}]"
            raise InputError(f"{where}: {error.found}", where=where, advice=error.advice) from error

    @staticmethod
    def _pairs(texts: list[str], pair: str | list[str] | None) -> Sequence[str | None]:
        if pair is None:
            return [None] * len(texts)
        if isinstance(pair, str) or len(pair) != len(texts):
            found = "one second text" if isinstance(pair, str) else f"{len(pair)} second texts"
            raise InputError(
                f"{len(texts)} texts and {found}", where="pair", advice="pass one second text for each text"
            )
        return pair

    def _run(
        self,
        encoded: Sequence[Encoded],
        texts: Sequence[tuple[str | None, str | None]],
        silenced: frozenset[tuple[int, int]],
        hidden_states: bool,
        progress: Callable[[int, int], None] | None,
    ) -> list[Trace]:
        import numpy as np

        from headscope._trace import Named, Outputs, TokenAxis, Trace
        from headscope.encoder import Input

        traces: list[Trace] = []
        for batch in _batches([len(one.ids) for one in encoded]):
            inputs = [
                Input(np.array(one.ids, dtype=np.int64), np.array(one.segments, dtype=np.int64))
                for one in encoded[batch]
            ]
            done_layers = None if progress is None else partial(_layers_done, progress, self.anatomy.known().layers)
            passes = self.encoder.forward(inputs, ablate=silenced, hidden_states=hidden_states, progress=done_layers)
            for one, (text, pair), done in zip(encoded[batch], texts[batch], passes, strict=True):
                assert done.last is not None
                outputs = {"last_hidden_state": Named("last_hidden_state", ("tokens", "d_model"), done.last)}
                for index, state in enumerate(done.hidden):
                    name = f"hidden_states.{index}"
                    outputs[name] = Named(name, ("tokens", "d_model"), state)
                traces.append(
                    Trace(
                        model=self.name,
                        fingerprint=self.fingerprint,
                        queries=TokenAxis(one.tokens, one.ids, one.segments, one.special, one.words, one.spans),
                        layers=done.layers,
                        outputs=Outputs(outputs),
                        text=text,
                        pair=pair,
                        ablated=silenced,
                        source=self,
                    )
                )
        return traces

    def __repr__(self) -> str:
        total = f"{self.parameters.total:,} numbers in {len(self.parameters)} parameters"
        sizes = self.anatomy.dimensions
        if sizes is None:
            return f"{called(self.name)}: {total}; heads are not known for this family"
        heads = f"{sizes.layers} layers x {sizes.heads} heads of {sizes.d_head}"
        return f"{called(self.name)}: {self.anatomy.base_class}, {heads}, {total}"


def _layers_done(progress: Callable[[int, int], None], layers: int, done: int) -> None:
    progress(done, layers)


def _batches(lengths: Sequence[int]) -> list[slice]:
    """Neighbouring texts together, up to BATCH_TOKENS tokens."""
    batches: list[slice] = []
    start, tokens = 0, 0
    for index, length in enumerate(lengths):
        if index > start and tokens + length > BATCH_TOKENS:
            batches.append(slice(start, index))
            start, tokens = index, 0
        tokens += length
    return [*batches, slice(start, len(lengths))] if lengths else batches
