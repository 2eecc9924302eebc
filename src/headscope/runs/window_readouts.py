"""One number for each window of a corpus, read with heads silenced: a loss, a class's logit, or a change of the vector.

`effects` explains an output of one text. Over a corpus, the number must be one that every window has:

    loss                  mean of -log p(token) over masked tokens, with MASKED of the window's tokens masked
    class                 the logit of a class: the named one, or the class that the whole model predicts for the window
    embedding             the window's vector, as its projection on what it is before anything is silenced
    embedding_distance    1 - the cosine of these two
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.encoder import Input
from headscope.errors import not_a_number
from headscope.results.effect_records import UNITS, Target
from headscope.runs.engine import Base, Edit, NumpyRunner, base_readings
from headscope.runs.masking import mask_of
from headscope.runs.targets import label_name, label_number, lacks, vector_target

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.heads.windows import Window
    from headscope.model import Model

    Tokens = Float[np.ndarray, "tokens d_model"]

MASKED = 0.15
"""Share of a window's tokens, special ones apart, that are masked for the loss (Devlin et al. 2018); at least one."""

KEPT_BYTES = 1 << 28
"""Most memory for the passes that are kept, 256 MiB: those of 3 batches of 2,048 tokens of BERT-base, or of 12 of
MiniLM."""

PREDICTED = "predicted"
"""The label of the output that is the class predicted for each window."""


@dataclass(frozen=True)
class Readout:
    """A number that every window has.

    Attributes:
        kind: `loss`, `class`, `embedding` or `embedding_distance`.
        label: for a class its name, or PREDICTED; otherwise empty.
        index: its logit; None for PREDICTED and the other kinds.
    """

    kind: str
    label: str = ""
    index: int | None = None

    @property
    def unit(self) -> str:
        """The unit of the number."""
        return UNITS[self.kind]

    def record(self) -> dict[str, Any]:
        """The output as a manifest records it."""
        return {"kind": self.kind, "label": self.label, "index": self.index, "unit": self.unit}

    def __str__(self) -> str:
        return {
            "loss": "masked-LM loss",
            "class": f"logit of the class {self.label!r}" if self.index is not None else "logit of the predicted class",
            "embedding": "embedding (share of its length)",
            "embedding_distance": "embedding (1 - cosine)",
        }[self.kind]


def readout_of(model: Model, wanted: str | None) -> Readout:
    """The readout that a name stands for: one of the kinds above (`class` is the predicted one), or a class's name.

    By default the loss of a model with a masked-LM head, the predicted class of a classifier, else embedding_distance.

    Raises:
        UnsupportedError: the model lacks that output, or is one that headscope doesn't run.
        InputError: there is no such class.
    """
    model.anatomy.computable()
    tasks = model.anatomy.tasks
    if wanted is None:
        wanted = "loss" if "masked_lm" in tasks else "class" if "sequence" in tasks else "embedding_distance"
    if wanted == "loss":
        if "masked_lm" not in tasks:
            raise lacks(model, "masked-LM head", "ForMaskedLM")
        mask_of(model)
        return Readout("loss")
    if wanted in ("embedding", "embedding_distance"):
        _ = model.pooling  # raises if headscope can't compute it
        return Readout(wanted)
    if "sequence" not in tasks:
        raise lacks(model, "sequence classifier", "ForSequenceClassification")
    if wanted == "class":
        return Readout("class", PREDICTED)
    index = label_number(model, int(wanted) if re.fullmatch("[0-9]{1,9}", wanted) else wanted, "class")
    return Readout("class", label_name(model, index), index)


def digest_of(window: Window) -> str:
    """The sha256 of a window's tokens and segments, in decimals, the two apart by a zero byte."""
    both = (" ".join(map(str, numbers.tolist())) for numbers in (window.ids, window.segments))
    return hashlib.sha256("\0".join(both).encode()).hexdigest()


def masked_places(window: Window) -> list[int]:
    """The tokens that are masked: those with the smallest sha256 of the window's digest, a zero byte and place."""
    places, digest = np.flatnonzero(~window.roles.special).tolist(), digest_of(window)
    places.sort(key=lambda at: hashlib.sha256(f"{digest}\0{at}".encode()).digest())
    return sorted(places[: max(1, round(MASKED * len(places)))])


def checkpoint_digest(model: Model) -> str:
    """The sha256 of all of the checkpoint's weights, with what is on top."""
    checkpoint, digest = model.checkpoint, hashlib.sha256()
    for name in sorted(checkpoint.tensors):
        array = np.ascontiguousarray(checkpoint.read(name))
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class WindowReader:
    """Reads one number of windows, with any heads silenced.

    Attributes:
        model: the model.
        readout: the number.
        method: what a silenced head gives: see headscope.runs.engine.
    """

    model: Model
    readout: Readout
    method: str = "zero"
    _targets: dict[str, Target] = field(default_factory=dict, repr=False)
    """Window's digest -> its number, which may refer to what the whole model gives."""
    _passes: dict[tuple[str, ...], Base] = field(default_factory=dict, repr=False)
    """Digests of a batch -> its last pass: the next one, with other heads silenced, begins where the two part."""

    def record(self) -> dict[str, Any]:
        """Return all that the numbers depend on, for a manifest; with the sha256 of all of the checkpoint's weights."""
        rule = self.model.pooling if self.readout.kind.startswith("embedding") else None
        pooling = {} if rule is None else {"pooling": rule.mode}
        if rule is not None and rule.width is not None:
            pooling["truncate_dim"] = str(rule.width)
        return {**self.readout.record(), "method": self.method, **pooling, "sha256": checkpoint_digest(self.model)}

    def numbers(
        self,
        windows: Sequence[Window],
        silenced: frozenset[tuple[int, int]] = frozenset(),
        heads: Sequence[tuple[int, int]] = (),
    ) -> Float[np.ndarray, "windows heads_and_one"]:
        """The number with `silenced`, and then with each of `heads`, (layer, head), silenced as well.

        The windows run as one batch, on which the last bits of a number may depend.

        Raises:
            InputError: an id is beyond the vocabulary, or a window is longer than the position table.
            CheckpointError: a number is not finite.
        """
        runner, inputs = NumpyRunner(self.model), [self._input(window) for window in windows]
        gone = frozenset(Edit(*head, self.method) for head in silenced)
        whole, digests = None, tuple(digest_of(window) for window in windows)
        if any(digest not in self._targets for digest in digests):
            whole = runner.base(inputs, contexts=False)
            for window, digest, rows in zip(windows, digests, whole.rows, strict=True):
                self._targets[digest] = self._target(window, whole.last[rows])
        base = whole or self._passes.get(digests)
        if base is None or base.edits != gone:
            base = runner.base(inputs, edits=gone, contexts=False, like=base)
        if digests in self._passes or (len(self._passes) + 1) * len(base.layers) * base.last.nbytes <= KEPT_BYTES:
            self._passes[digests] = base
        targets = [self._targets[digest] for digest in digests]
        first = base_readings(self.model, base, targets).values
        if not np.isfinite(first).all():
            raise not_a_number("the output is not a number", self.model.checkpoint.where)
        changed = runner.run(base, [frozenset({Edit(*head, self.method)}) for head in heads], targets)
        return np.concatenate([first[None], changed.values]).T

    def _input(self, window: Window) -> Input:
        """The window as the encoder takes it, masked for the loss."""
        ids = window.ids.copy()
        if self.readout.kind == "loss":
            ids[masked_places(window)] = mask_of(self.model)
        return Input(ids, window.segments)

    def _target(self, window: Window, last: Tokens) -> Target:
        """The number of one window, from the last hidden state of the whole model."""
        kind, label, index = self.readout.kind, self.readout.label, self.readout.index
        if kind == "loss":
            masked = tuple((at, int(window.ids[at])) for at in masked_places(window))
            return Target(kind, label, None, None, masked=masked)
        if kind != "class":
            return vector_target(self.model, last, kind)
        if index is None:
            index = int(np.argmax(self.model.tops.sequence(last)))
        return Target(kind, label, index, 0 if self.model.tops.reads_first_token else None)
