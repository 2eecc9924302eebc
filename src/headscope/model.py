"""The object that `hs.open` returns: a checkpoint, its anatomy, and the methods that run it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, overload

from headscope.anatomy import Anatomy, Components, Layer, Parameters, layers_of, read_anatomy
from headscope.checkpoint import Checkpoint, called, open_checkpoint
from headscope.checkpoint.tokenizer.known import SEGMENTS
from headscope.errors import InputError
from headscope.late import Suggesting, late

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    from headscope.anatomy.fit import Fit
    from headscope.anatomy.glossary import ConfigTable
    from headscope.anatomy.tree import Node
    from headscope.attention.patterns import Heads
    from headscope.checkpoint.tokenizer import Tokenizer
    from headscope.encoder import Encoder
    from headscope.encoder.task_heads import Tops
    from headscope.results.arrays import Named
    from headscope.results.effect_records import Effects, Removal, Wanted
    from headscope.results.explained import Attribution, Filled, Pooling, Prediction
    from headscope.results.head_values import HeadValues
    from headscope.results.verify_report import Report
    from headscope.traces import Trace


def open_model(
    name: str | os.PathLike[str] | Any = "-",
    *,
    revision: str | None = None,
    tokenizer: str | os.PathLike[str] | Any = None,
    segments: str = "own",
) -> Model:
    """Open a checkpoint: read its header and config, but no weights.

    Args:
        name: a hub id, a folder, a file, or `-` for the bundled model; or a model in memory: an object of
            sentence-transformers, a pipeline or a model of transformers. It is saved to a temporary folder as it is
            now; what is changed in it later isn't seen.
        revision: a branch, tag or commit; for hub ids only.
        tokenizer: a folder with a tokenizer's files, or another checkpoint's name, for weights without a tokenizer; for
            a model of transformers in memory also its tokenizer.
        segments: of a pair: `one`, `two`, or `own`: as the tokenizer has them in the version that saved it.

    Raises:
        NotFoundError: there is no such checkpoint.
        InputError: `name` is nothing of this kind.
        CheckpointError: the files are damaged or contradict each other.
        ConfigError: the config lacks a size or holds an impossible one.
    """
    if isinstance(name, Model):
        return name
    if isinstance(name, (str, os.PathLike)):
        checkpoint = open_checkpoint(name, revision=revision)
    else:
        from headscope.checkpoint.models_in_memory import open_held

        checkpoint = open_held(name, tokenizer)
        tokenizer = tokenizer if isinstance(tokenizer, (str, os.PathLike)) else None
    return Model(checkpoint, read_anatomy(checkpoint), tokenizer=tokenizer, segments=segments)


class Model(Suggesting):
    """An open checkpoint.

    Attributes:
        checkpoint: the files on disk or on the hub.
        anatomy: the meaning of their tensors.
        tokenizer_from: the tokenizer that `hs.open` was given; None for the checkpoint's own.
        segments: those that it was given.
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "attentions": "model.trace(text).weights",
        "encode": "model.trace(text).outputs['sentence_embedding'], or hs.match for a score",
        "embeddings": "model.parameters",
        "heads": "model.layers[0].heads",
        "named_parameters": "model.parameters",
        "num_heads": "model.anatomy.dimensions.heads",
        "num_layers": "model.anatomy.dimensions.layers",
        "similarity": "hs.match(model, a, b)",
        "state_dict": "model.checkpoint.tensors, which model.checkpoint.read(name) reads",
        **dict.fromkeys(("plot", "show", "view"), "model.trace(text).view()"),
        **dict.fromkeys(("cuda", "device", "eval", "to"), "model, which runs in NumPy; hs.trace reads a live one"),
    }

    def __init__(
        self,
        checkpoint: Checkpoint,
        anatomy: Anatomy,
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        segments: str = "own",
    ) -> None:
        if segments not in SEGMENTS:
            advice = f"use one of {', '.join(SEGMENTS)}"
            raise InputError(f"unknown segments {segments!r:.40}", where="segments", advice=advice)
        self.segments = segments
        self.checkpoint = checkpoint
        self.anatomy = anatomy
        self.tokenizer_from = tokenizer

    def __getstate__(self) -> dict[str, Any]:
        """The state without what was read of the files, which another process reads when it needs it."""
        cached = {name for name, kind in vars(type(self)).items() if isinstance(kind, cached_property)}
        return {name: value for name, value in vars(self).items() if name not in cached}

    @property
    def name(self) -> str:
        """The name that was passed to `hs.open`."""
        return self.checkpoint.name

    @cached_property
    def fingerprint(self) -> str:
        """A hash of config and header; no weights are read."""
        return self.checkpoint.fingerprint()

    @property
    def parameters(self) -> Parameters:
        """The base model's parameters, in the class's order."""
        return self.anatomy.parameters

    @property
    def extra(self) -> Parameters:
        """The parameters on top of the base model."""
        return self.anatomy.extra

    @property
    def components(self) -> Components:
        """Embeddings, encoder and pooler, with their counts and shares."""
        return self.anatomy.components

    @property
    def all_parameters(self) -> Parameters:
        """The base model's parameters and those on top of it: `all_parameters.total` counts both."""
        return self.anatomy.all_parameters

    @property
    def extra_components(self) -> Components:
        """The parts on top of the base model: their counts, and their shares of the parameters on top."""
        return self.anatomy.extra_components

    @cached_property
    def config(self) -> ConfigTable:
        """Every field of the config with its meaning and its consequences for this model."""
        from headscope.anatomy.glossary import explain_config

        return explain_config(self.anatomy)

    def memory(self) -> dict[str, tuple[int, int]]:
        """Bytes of the base model, and of all parameters, at fp32, fp16, bf16 and int8, and as stored."""
        from headscope.anatomy.anatomy_record import memory

        return memory(self.anatomy)

    def tree(self) -> Node:
        """The module tree, repeats collapsed."""
        from headscope.anatomy.tree import tree

        return tree(self.anatomy)

    def fit(self, class_name: str) -> Fit:
        """List the parameters that a transformers class would load from this checkpoint, initialise and ignore."""
        from headscope.anatomy.fit import fit

        return fit(self.anatomy, class_name)

    @cached_property
    def layers(self) -> Sequence[Layer]:
        """The layers, counted from 0; each access to `layers[0].heads[3].W_Q` reads it from the file."""
        return layers_of(self.checkpoint, self.anatomy)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer, or the one that `hs.open` was given.

        Raises:
            NotFoundError: there is no such folder or checkpoint.
            InputError: the tokenizer has more tokens than the model has embeddings.
        """
        from headscope.checkpoint.tokenizer import borrowed_tokenizer, load_tokenizer

        if self.tokenizer_from is None:
            return load_tokenizer(self.checkpoint, self.segments)
        return borrowed_tokenizer(self.tokenizer_from, self.checkpoint, self.anatomy.known().vocab, self.segments)

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder that runs this checkpoint's weights."""
        from headscope.encoder import Encoder

        return Encoder(self.checkpoint, self.anatomy)

    @cached_property
    def tops(self) -> Tops:
        """The heads on top of the base model."""
        from headscope.encoder.task_heads import Tops

        return Tops(self.encoder)

    def W_O(self, layer: int, head: int) -> Float[np.ndarray, "d_head d_model"]:
        """(d_head, d_model): a head's rows of the paper's W^O."""
        return self.layers[layer].heads[head].W_O

    @cached_property
    def pooling(self) -> Pooling:
        """The pooling of the tokens' vectors into the text's vector; the mean if the checkpoint has no modules.json.

        Raises:
            UnsupportedError: the checkpoint pools in a way that headscope doesn't compute.
        """
        from headscope.checkpoint.sentence import read_pooling

        return read_pooling(self.checkpoint)

    @cached_property
    def text_rule(self) -> Pooling:
        """The prompt, the case and the limit of a text, as sentence-transformers' files say, for any pooling."""
        from headscope.checkpoint.sentence import read_rule

        return read_rule(self.checkpoint)

    def late_outputs(self) -> tuple[str, ...]:
        """Names of the outputs that are computed from the last hidden state.

        They include `sentence_embedding` if the checkpoint has a modules.json, which sentence-transformers writes.
        """
        sentence = ("sentence_embedding",) if self.checkpoint.file("modules.json") is not None else ()
        return (*self.tops.outputs, *sentence)

    def late_output(
        self, name: str, last_hidden_state: Float[np.ndarray, "tokens d_model"], prompt: int = 0
    ) -> Named | None:
        """Compute an output from the last hidden state, less a prompt's tokens; None if there is no such output."""
        if name != "sentence_embedding":
            return self.tops.compute(name, last_hidden_state)
        if not self.pooling.stated:
            return None
        from headscope.encoder.task_heads import sentence_embedding
        from headscope.results.arrays import Named

        axis = "d_model" if self.pooling.width is None else "truncate_dim"
        return Named(name, (axis,), sentence_embedding(last_hidden_state, self.pooling, prompt))

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
        ablate: Heads = (),
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
        ablate: Heads = (),
        hidden_states: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Trace]: ...
    @late("headscope.runs.texts:trace")
    def trace(
        self,
        text: str | list[str] | None = None,
        pair: str | list[str] | None = None,
        *,
        words: Sequence[str] | None = None,
        ids: Sequence[int] | None = None,
        segments: Sequence[int] | None = None,
        max_length: int | None = None,
        ablate: Heads = (),
        hidden_states: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Trace | list[Trace]:
        """Run one forward pass and return its trace.

        A text of a sentence-transformers checkpoint gets its prompt, lower case and limit, as the trace's `notes` say.

        Args:
            text: a text, or a list of texts for a list of traces.
            pair: a second text for the same input; for a list of texts, a list with one for each.
            words: a list of words instead of a text; each word is tokenized separately.
            ids: token ids instead of a text, used unchanged: no special tokens are added.
            segments: 0 or 1 for each of `ids`; all 0 by default.
            max_length: cut longer texts to this many tokens, instead of at the limit of a sentence-transformers
                checkpoint. Otherwise, a text that exceeds the position table is an error.
            ablate: heads to silence, (layer, head): their context is 0. Or a mapping from heads to ways: "zero",
                "mean", or a map in place of the head's weights: "uniform", "shuffle" ("shuffle:1" is another
                permutation), "identity", an array of (tokens, tokens), or a callable that makes one from the weights.
                See headscope.attention.patterns.
            hidden_states: True to add the outputs of the embeddings and of every layer, (S, d_model) each, to the
                trace's outputs.
            progress: called with the number of finished layers and of all layers, for each batch of texts.

        Raises:
            InputError: an empty text, an id beyond the vocabulary, too many tokens, a head that doesn't exist, or a map
                that doesn't fit the text.
            UnsupportedError: headscope can't read this checkpoint's heads or tokenizer correctly.
        """

    def verify(self, text: str | Trace, pair: str | None = None, *, reference: bool = True) -> Report:
        """Compute one forward pass in several independent ways and compare them. See headscope.verify.

        Args:
            text: a text, or a trace of this model.
            pair: a second text for the same input.
            reference: True to compare with transformers too, if it is installed.
        """
        trace = self.trace(text, pair) if isinstance(text, str) else text
        if not hasattr(trace, "verify"):
            advice = "verify several one by one: [trace.verify() for trace in model.trace(texts)]"
            raise InputError(f"expected a text or a trace, got {type(text).__name__}", where="verify", advice=advice)
        if trace is text and pair is not None:
            raise InputError("a trace has its own texts", where="pair", advice="leave pair out, or pass both texts")
        return trace.verify(reference=reference)

    @late("headscope.runs.predicting:fill")
    def fill(
        self, text: str, pair: str | None = None, *, top: int = 5, max_length: int | None = None, ablate: Heads = ()
    ) -> tuple[Filled, ...]:
        """Return the best tokens for each mask of a text, with their probabilities. See headscope.runs.predicting."""

    @late("headscope.runs.predicting:predict")
    def predict(
        self, text: str, pair: str | None = None, *, max_length: int | None = None, ablate: Heads = ()
    ) -> Prediction:
        """Return a classifier's classes for a text, with their probabilities. See headscope.runs.predicting."""

    @overload
    def effects(
        self,
        text: str,
        target: Wanted = None,
        *,
        pair: str | None = None,
        method: str = "zero",
        patch_from: str | None = None,
        edge: tuple[int, int] | None = None,
        max_length: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Effects: ...
    @overload
    def effects(
        self,
        text: list[str],
        target: Wanted = None,
        *,
        labels: Sequence[Any] | None = None,
        metric: str | Callable[[np.ndarray, Any], float] | None = None,
        pair: list[str] | None = None,
        method: str = "zero",
        patch_from: list[str] | None = None,
        max_length: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> HeadValues: ...
    @late("headscope.runs.scored_texts:effects_on")
    def effects(
        self,
        text: str | list[str],
        target: Wanted = None,
        *,
        labels: Sequence[Any] | None = None,
        metric: str | Callable[[np.ndarray, Any], float] | None = None,
        pair: str | list[str] | None = None,
        method: str = "zero",
        patch_from: str | list[str] | None = None,
        edge: tuple[int, int] | None = None,
        max_length: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Effects | HeadValues:
        """Silence (or patch) each head in turn, and read one output: exact. See headscope.runs.effects.

        Args:
            text: a text, or a list of texts for their mean with a 95 % interval.
            target: the output; by default the best word at the first mask, else the predicted class, else the text's
                vector. headscope.runs.targets lists the possible targets.
            labels: of a list of texts, instead of a target: the right class, word at the first mask or number of each.
                The change is then that of a score: `metric`.
            metric: `accuracy` (by default), `loss` or, without labels, `vector` (how far the text's vector moves, as a
                share of its length); or a function of one text's logits (or vector) and its label that gives a number.
                Without labels, accuracy is agreement with what the model says with all heads.
            pair: a second text that goes with it; for a list of texts, a list with one for each.
            method: `zero` (the head's context is 0) or `mean` (every token gets the mean of its contexts).
            patch_from: a text with the same number of tokens, from whose run each head's context is taken instead; for
                a list of texts, a list with one for each.
            edge: (query, key), positions counted from 0: cut this edge of each head of one text, not the whole head.
            max_length: cut longer texts to this many tokens.
            progress: called with the layers done and all layers; for a list of texts, with texts instead. By default
                a bar in notebooks, and lines of the log `headscope`.
        """

    @late("headscope.runs.scored_texts:removal")
    def removal(
        self,
        texts: list[str],
        labels: Sequence[Any] | None = None,
        *,
        metric: str | Callable[[np.ndarray, Any], float] = "accuracy",
        order: str | Sequence[tuple[int, int]] = "rank",
        less_is_better: bool | None = None,
        random: int = 5,
        steps: int | None = None,
        pair: list[str] | None = None,
        method: str = "zero",
        max_length: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Removal:
        """Silence heads one after the other, and read a score after each: the curve of removal.

        Args:
            texts: the texts. An order that is chosen is chosen on the first, third, … and reported on the others.
            labels: the right class, word at the first mask or number of each text; see `effects`.
            metric: as in `effects`.
            order: `rank`: the head first whose loss alone costs least; `greedy`: at each step the head that costs least
                then, of the 8 that cost least when they were last measured; or heads of your own, (layer, head).
            less_is_better: of a metric that is a function: True for a loss.
            random: curves with heads drawn at random beside it: at each step as many of each layer. They are measured
                at 16 steps.
            steps: how many heads go; by default all.
            pair: a second text for each.
            method: `zero` or `mean`, as in `effects`.
            max_length: cut longer texts to this many tokens.
            progress: called with the texts done and all texts, in each of the runs over them.
        """

    @late("headscope.explain.attribution:attribute")
    def attribute(
        self,
        text: str,
        target: Wanted = None,
        *,
        pair: str | None = None,
        max_length: int | None = None,
        check: bool = True,
    ) -> Attribution:
        """Attribute one output to the input tokens: what does each of them add? See headscope.explain.attribution.

        Args:
            text: the text.
            target: the output, as in `effects`.
            pair: a second text for the same input.
            max_length: cut longer texts to this many tokens.
            check: also mask each of the three words with the greatest scores for real, in three forward passes.

        Raises:
            InputError: an unknown target, no mask, a text that is too long.
            UnsupportedError: the model lacks the output, or has parts without a rule.
        """

    @late("headscope.screens.html_tables:html_screen")
    def _repr_html_(self) -> str | None:
        """The parameters and their shapes as a notebook shows them."""

    def __repr__(self) -> str:
        held = self.checkpoint.held
        parameters = self.all_parameters if held else self.parameters
        total = f"{parameters.total:,} parameters in {len(parameters)} tensors"
        sizes = self.anatomy.dimensions
        if sizes is None:
            return f"{called(self.name)}: {total}; headscope doesn't know the heads of this family"
        heads = f"{sizes.layers} layers x {sizes.heads} heads of {sizes.d_head}"
        return f"{called(self.name)}: {held or self.anatomy.base_class}, {heads}, {total}"
