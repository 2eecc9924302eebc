"""One number for each window of a corpus, read with heads silenced: a loss, a class's logit, or how far a vector moved.

`effects` explains an output of one text. Over a corpus, the number must be one that every window has:

    loss         mean of -log p(token) over masked tokens, with MASKED of the window's tokens masked
    class        the logit of a class: the named one, or the class that the whole model predicts for the window
    embedding    1 - cos(e, e_0), with e_0 the window's vector before anything is silenced
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.encoder import Input, rows_of
from headscope.errors import CheckpointError, InputError
from headscope.explain.sentence import cosines_with, pooled
from headscope.explain.target import label_name, label_number, lacks

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.model import Model

    Tokens = Float[np.ndarray, "tokens d_model"]

MASKED = 0.15
"""Share of a window's tokens, special ones apart, that are masked for the loss (Devlin et al. 2018); at least one."""

PREDICTED = "predicted"
"""The label of the output that is the class predicted for each window."""

METHODS = ("zero", "mean")


@dataclass(frozen=True)
class Output:
    """The number that is read.

    Attributes:
        kind: `loss`, `class` or `embedding`.
        label: for a class its name, or PREDICTED; otherwise empty.
        index: its logit; None for PREDICTED and the other kinds.
    """

    kind: str
    label: str = ""
    index: int | None = None

    @property
    def unit(self) -> str:
        """The unit of the number."""
        return {"loss": "nats", "class": "logit", "embedding": "1 - cosine"}[self.kind]

    def record(self) -> dict[str, Any]:
        """The output as a manifest records it."""
        return {"kind": self.kind, "label": self.label, "index": self.index}

    def __str__(self) -> str:
        return {
            "loss": "masked-LM loss",
            "class": f"logit of the class {self.label!r}" if self.index is not None else "logit of the predicted class",
            "embedding": "embedding (1 - cosine)",
        }[self.kind]


def output_of(model: Model, wanted: str | None) -> Output:
    """The output that a name stands for: `loss`, `class` (the predicted one), `embedding`, or the name of a class.

    By default the loss of a model with a masked-LM head, the predicted class of a classifier, else the embedding.

    Raises:
        UnsupportedError: the model lacks that output, or is one that headscope doesn't run.
        InputError: there is no such class.
    """
    model.anatomy.computable()
    tasks = model.anatomy.tasks
    if wanted is None:
        wanted = "loss" if "masked_lm" in tasks else "class" if "sequence" in tasks else "embedding"
    if wanted == "loss":
        if "masked_lm" not in tasks:
            raise lacks(model, "masked-LM head", "ForMaskedLM")
        if model.tokenizer.mask_id is None:
            raise InputError(
                "the tokenizer has no mask token, so nothing can be masked",
                where=model.checkpoint.where,
                advice="name another output: embedding, or a class",
            )
        return Output("loss")
    if wanted == "embedding":
        _ = model.pooling  # raises if headscope can't compute it
        return Output("embedding")
    if "sequence" not in tasks:
        raise lacks(model, "sequence classifier", "ForSequenceClassification")
    if wanted == "class":
        return Output("class", PREDICTED)
    index = label_number(model, int(wanted) if wanted.isascii() and wanted.isdigit() else wanted, "class")
    return Output("class", label_name(model, index), index)


@dataclass(frozen=True, eq=False)
class TokenWindow:
    """A window as effects read it.

    Attributes:
        name: identifies it.
        ids, segments: (tokens,).
        special: of each token.
    """

    name: str
    ids: tuple[int, ...]
    segments: tuple[int, ...]
    special: tuple[bool, ...]


def masked_places(window: TokenWindow) -> list[int]:
    """The tokens that are masked: those with the smallest sha256 of the window's name, a zero byte and the position."""
    places = [at for at, added in enumerate(window.special) if not added]
    places.sort(key=lambda at: hashlib.sha256(f"{window.name}\0{at}".encode()).digest())
    return sorted(places[: max(1, round(MASKED * len(places)))])


@dataclass(frozen=True, eq=False)
class WindowReader:
    """Reads one output of windows, with any heads silenced.

    For each head only the layers from its own on run again, from the kept input of that layer; windows run side by
    side. With L layers of H heads, all heads cost H (L + 1) / 2 forward passes instead of H L.

    Attributes:
        model: the model.
        output: the number.
        method: what a silenced head gives, as in `attention.silent`.
    """

    model: Model
    output: Output
    method: str = "zero"
    _references: dict[str, Any] = field(default_factory=dict, repr=False)
    """Window's name -> the vector or the class of the whole model; None for the loss."""

    def record(self) -> dict[str, Any]:
        """What the numbers depend on, for a manifest; with the sha256 of all of the checkpoint's weights."""
        checkpoint, digest = self.model.checkpoint, hashlib.sha256()
        for name in sorted(checkpoint.tensors):
            array = np.ascontiguousarray(checkpoint.read(name))
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        pooling = {"pooling": self.model.pooling.mode} if self.output.kind == "embedding" else {}
        return {**self.output.record(), "method": self.method, **pooling, "sha256": digest.hexdigest()}

    def numbers(
        self,
        windows: Sequence[TokenWindow],
        silenced: frozenset[tuple[int, int]] = frozenset(),
        heads: Sequence[tuple[int, int]] = (),
    ) -> Float[np.ndarray, "windows heads_and_one"]:
        """The number with `silenced`, and then with each of `heads`, (layer, head), silenced as well.

        The windows run as one batch, on which the last bits of a number may depend.

        Raises:
            InputError: an id is beyond the vocabulary, or a window is longer than the position table.
            CheckpointError: a number is not finite.
        """
        encoder, layers = self.model.encoder, self.model.anatomy.known().layers
        encoder.checkpoint.fetch()
        inputs = [self._input(window) for window in windows]
        for text in inputs:
            encoder.check(text)
        texts = rows_of(inputs)
        embedded = encoder.embed(inputs)
        if silenced and any(window.name not in self._references for window in windows):
            self._refer(windows, texts, self._run(embedded, 0, texts, frozenset()))
        kept = [embedded]
        for layer in range(layers):
            kept.append(encoder.layer(kept[-1], layer, texts, _of(silenced, layer), self.method)[0])
        whole = encoder.after_layers(kept[-1])
        if not silenced:
            self._refer(windows, texts, whole)
        columns = [self._read(windows, texts, whole)]
        for layer, head in heads:
            last = self._run(kept[layer], layer, texts, silenced | {(layer, head)})
            columns.append(self._read(windows, texts, last))
        numbers = np.stack(columns, axis=1)
        if not np.isfinite(numbers).all():
            raise CheckpointError(
                "the output is not a number",
                where=self.model.checkpoint.where,
                advice="`headscope verify` says where NaN or infinity comes from",
            )
        return numbers

    def _run(self, x: Tokens, start: int, texts: Sequence[slice], silenced: frozenset[tuple[int, int]]) -> Tokens:
        """The last hidden state from the input of a layer."""
        for layer in range(start, self.model.anatomy.known().layers):
            x, _ = self.model.encoder.layer(x, layer, texts, _of(silenced, layer), self.method)
        return self.model.encoder.after_layers(x)

    def _input(self, window: TokenWindow) -> Input:
        """The window as the encoder takes it, masked for the loss."""
        ids = np.array(window.ids, dtype=np.int64)
        if self.output.kind == "loss":
            mask = self.model.tokenizer.mask_id
            assert mask is not None  # output_of checks it
            ids[masked_places(window)] = mask
        return Input(ids, np.array(window.segments, dtype=np.int64))

    def _refer(self, windows: Sequence[TokenWindow], texts: Sequence[slice], last: Tokens) -> None:
        """Remember what the numbers of windows refer to, from the last hidden state of the whole model."""
        for window, rows in zip(windows, texts, strict=True):
            reference: Any = self.output.index
            if self.output.kind == "embedding":
                reference = pooled(last[rows], self.model.pooling)
            elif self.output.kind == "class" and reference is None:
                reference = int(np.argmax(self.model.tops.sequence(last[rows])))
            self._references[window.name] = reference

    def _read(self, windows: Sequence[TokenWindow], texts: Sequence[slice], last: Tokens) -> Float[np.ndarray, " n"]:
        return np.array(
            [self._number(window, last[rows]) for window, rows in zip(windows, texts, strict=True)], dtype=np.float64
        )

    def _number(self, window: TokenWindow, last: Tokens) -> float:
        reference = self._references[window.name]
        if self.output.kind == "embedding":
            return 1 - float(cosines_with(reference, pooled(last, self.model.pooling)[None])[0])
        if self.output.kind == "class":
            return float(self.model.tops.sequence(last)[reference])
        places = masked_places(window)
        return _loss(self.model.tops.masked_lm(last[places]), np.array(window.ids, dtype=np.int64)[places])


def _of(silenced: frozenset[tuple[int, int]], layer: int) -> list[int]:
    return sorted(head for at, head in silenced if at == layer)


def _loss(logits: Float[np.ndarray, "masked vocabulary"], tokens: Int[np.ndarray, " masked"]) -> float:
    """The mean cross-entropy, in fp64."""
    wide = logits.astype(np.float64)
    highest = wide.max(axis=1, keepdims=True)
    totals = highest[:, 0] + np.log(np.exp(wide - highest).sum(axis=1))
    return float((totals - wide[np.arange(len(tokens)), tokens]).mean())
