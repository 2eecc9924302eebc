"""Layers and heads of a checkpoint: slices of the stored weights, read from the file on access.

One W_Q per layer holds all heads. torch's Linear stores W as (out, in); the paper's W is (in, out). So head h is rows
h * d_head to (h + 1) * d_head of the stored query weight, and the transpose of those rows is the paper's W_h^Q,
(d_model, d_head). In the stored output weight, head h is columns h * d_head to (h + 1) * d_head, and their transpose
is the head's rows of the paper's W^O, (d_head, d_model).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, overload

from headscope.errors import InputError
from headscope.late import late

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    import numpy as np
    from jaxtyping import Float

    from headscope.anatomy.anatomy_record import Anatomy
    from headscope.checkpoint import Checkpoint

    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

T = TypeVar("T")

KEY_ROLES = ("layer.key.", "layer.value.")
"""Roles of the parameters that grouped-query attention shares among query heads."""

HEAD_SLICES = (
    ("W_Q", "layer.query.weight", "rows"),
    ("W_K", "layer.key.weight", "rows"),
    ("W_V", "layer.value.weight", "rows"),
    ("W_O", "layer.attention_output.weight", "columns"),
    ("b_Q", "layer.query.bias", "rows"),
    ("b_K", "layer.key.bias", "rows"),
    ("b_V", "layer.value.bias", "rows"),
)
"""The paper's symbol, its role, and the axis of the stored tensor that heads divide."""


class CheckedSequence(Sequence[T]):
    """A sequence whose IndexError names its items: "there is no head 12: layer 3 has 12 heads"."""

    def __init__(self, items: Sequence[T], noun: str, place: str) -> None:
        self._items = tuple(items)
        self._noun = noun
        self._place = place

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return self._items[index]
        return self._items[check_index(index, len(self), self._noun, self._place)]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __repr__(self) -> str:
        return f"{len(self)} {self._noun}{'s' * (len(self) != 1)} of {self._place}, counted from 0"


class OutOfRangeError(InputError, IndexError):
    """No such layer or head. Also an IndexError, as sequences require."""


def check_index(index: int, size: int, noun: str, place: str) -> int:
    """Return the index of a layer or head, counted from 0; negative indices count from the end.

    Raises:
        OutOfRangeError: there is no such layer or head.
    """
    try:
        at = operator.index(index)
    except TypeError:  # a name, a slice, an array
        at = size
    if -size <= at < size:
        return at % size
    raise OutOfRangeError(
        f"there is no {noun} {index!r:.40}: {place} has {size} {noun}{'s' * (size != 1)}",
        where=f"{noun} {index!s:.40}",
        advice=f"{noun}s count from 0, so the last one is {size - 1}",
    )


@dataclass(frozen=True, repr=False)
class Head:
    """One head of one layer. Every weight is read from the file on access.

    Weights are copies in the file's dtype (BF16 as float32): upcast half precision before you multiply.

    For the layer's input X (S, d_model), Q = X W_Q + b_Q is (S, d_head), and likewise K and V. The head writes
    softmax(Q K^T / sqrt(d_head)) V W_O, (S, d_model), to the residual stream. (Vaswani et al. 2017, 3.2.2.)
    """

    checkpoint: Checkpoint
    anatomy: Anatomy = field(hash=False)
    layer: int
    index: int

    @property
    def span(self) -> slice:
        """This head's range in the concatenation of all heads."""
        d_head = self.anatomy.known().d_head
        return slice(self.index * d_head, (self.index + 1) * d_head)

    def range_of(self, role: str) -> slice:
        """This head's range in the parameter with a role; query heads that share a key head have the same."""
        sizes = self.anatomy.known()
        if not role.startswith(KEY_ROLES):
            return self.span
        at = self.index // (sizes.heads // sizes.kv_heads)
        return slice(at * sizes.d_head, (at + 1) * sizes.d_head)

    @property
    def W_Q(self) -> Float[np.ndarray, "d_model d_head"]:
        """(d_model, d_head): maps a token to its query."""
        return self._transposed("layer.query.weight")

    @property
    def W_K(self) -> Float[np.ndarray, "d_model d_head"]:
        """(d_model, d_head): maps a token to its key."""
        return self._transposed("layer.key.weight")

    @property
    def W_V(self) -> Float[np.ndarray, "d_model d_head"]:
        """(d_model, d_head): maps a token to its value."""
        return self._transposed("layer.value.weight")

    @property
    def W_O(self) -> Float[np.ndarray, "d_head d_model"]:
        """(d_head, d_model): maps the head's context to the residual stream; the head's rows of the paper's W^O."""
        span = self.span
        stored = self.anatomy.parameter("layer.attention_output.weight", self.layer).stored
        transposed: Array = self.checkpoint.read(stored, columns=span).copy().T
        return transposed

    @property
    def b_Q(self) -> Float[np.ndarray, " d_head"]:
        """(d_head,): added to X W_Q; 0 in families without this bias."""
        return self._part("layer.query.bias")

    @property
    def b_K(self) -> Float[np.ndarray, " d_head"]:
        """(d_head,): added to X W_K; 0 in families without this bias."""
        return self._part("layer.key.bias")

    @property
    def b_V(self) -> Float[np.ndarray, " d_head"]:
        """(d_head,): added to X W_V; 0 in families without this bias."""
        return self._part("layer.value.bias")

    def _part(self, role: str) -> Array:
        return read_role(self.checkpoint, self.anatomy, role, self.layer, self.range_of(role)).copy()

    def _transposed(self, role: str) -> Float[np.ndarray, "d_model d_head"]:
        transposed: Array = self._part(role).T
        return transposed

    @late("headscope.screens.html_tables:html_screen")
    def _repr_html_(self) -> str | None:
        """The head's slices as a notebook shows them."""

    def __repr__(self) -> str:
        sizes = self.anatomy.known()
        return (
            f"layer {self.layer}, head {self.index} (counted from 0): W_Q, W_K, W_V ({sizes.d_model}, {sizes.d_head}), "
            f"W_O ({sizes.d_head}, {sizes.d_model})"
        )


@dataclass(frozen=True, repr=False)
class Layer:
    """One layer: its heads, and b_O (d_model,), the output bias of all heads together."""

    checkpoint: Checkpoint
    anatomy: Anatomy = field(hash=False)
    index: int

    @property
    def heads(self) -> Sequence[Head]:
        """The layer's heads, counted from 0."""
        heads = [Head(self.checkpoint, self.anatomy, self.index, head) for head in range(self.anatomy.known().heads)]
        return CheckedSequence(heads, "head", f"layer {self.index}")

    @property
    def b_O(self) -> Float[np.ndarray, " d_model"]:
        """(d_model,): added once, to the sum of the heads; 0 in families without this bias."""
        return self._read("layer.attention_output.bias")

    def _read(self, role: str) -> Array:
        self.anatomy.known()
        return read_role(self.checkpoint, self.anatomy, role, self.index)

    @property
    def expansion_rate(self) -> float:
        """Factor by which the layer's W_V and W_O lengthen a vector, with biases. See `expansion_rate`."""
        sizes = self.anatomy.known()
        roles = ("layer.value.weight", "layer.value.bias", "layer.attention_output.weight")
        W_V, b_V, W_O = (self._read(role) for role in roles)
        if sizes.kv_heads != sizes.heads:  # every query head takes the value of the key head that it shares
            shared = [row for head in self.heads for row in range(sizes.d_keys)[head.range_of("layer.value.weight")]]
            W_V, b_V = W_V[shared], b_V[shared]
        return expansion_rate(W_V.T, b_V, W_O.T, self.b_O)

    def __repr__(self) -> str:
        sizes = self.anatomy.known()
        return f"layer {self.index} (counted from 0): {sizes.heads} heads of {sizes.d_head}, d_model {sizes.d_model}"


def read_role(
    checkpoint: Checkpoint, anatomy: Anatomy, role: str, layer: int | None, rows: slice | None = None
) -> Array:
    """Read the parameter with a role, or some of its rows; a bias that the class doesn't have is 0.

    Raises:
        CheckpointError: the checkpoint lacks this parameter.
    """
    if role.endswith(".bias") and anatomy.goes_without(role, layer):
        import numpy as np

        size = anatomy.parameter(f"{role.removesuffix('.bias')}.weight", layer).shape[0]
        return np.zeros(len(range(size)[rows or slice(None)]), dtype=np.float32)
    row = anatomy.parameter(role, layer)
    if row.rows is not None:
        part = range(*row.rows)[rows or slice(None)]
        rows = slice(part.start, part.stop)
    return checkpoint.read(row.stored, rows=rows)


def expansion_rate(
    W_V: Float[np.ndarray, "d_model d_value"],
    b_V: Float[np.ndarray, " d_value"],
    W_O: Float[np.ndarray, "d_value d_model"],
    b_O: Float[np.ndarray, " d_model"],
) -> float:
    """|[W_V 0; b_V 1] · [W_O b_O; 0 1]|_F / sqrt(d_model + 1), as the authors' code has it (Kobayashi et al. 2021).

    The root mean square of the factor by which a layer's W_V W_O lengthens a random vector, biases included.
    Above 1 attention lengthens what it passes on, below 1 it shortens it. The authors' code has b_O as a column of the
    second matrix, and these are its numbers; the affine map x -> (x W_V + b_V) W_O + b_O itself, with b_O as a row,
    gives slightly smaller ones. Where heads are wider or narrower together than d_model, a column doesn't fit: then it
    is that map. The cost is one product in fp32, d_model^3, and no text.

    Args:
        W_V: of all heads, in the paper's orientation, x W_V + b_V.
        b_V: (d_value,).
        W_O: likewise, contexts W_O + b_O.
        b_O: (d_model,).
    """
    import numpy as np

    W_V, b_V, W_O, b_O = (np.asarray(array, dtype=np.float32) for array in (W_V, b_V, W_O, b_O))
    with np.errstate(invalid="ignore", over="ignore"):
        parts = [W_V @ W_O, b_V @ W_O + b_O, np.ones(1)]
        if len(b_V) == len(b_O):
            parts = [W_V @ W_O, W_V @ b_O, b_V @ W_O, b_V @ b_O + 1]
        squares = sum(np.square(part, dtype=np.float64).sum() for part in parts)
    return float(np.sqrt(squares / (len(W_V) + 1)))


def layers_of(checkpoint: Checkpoint, anatomy: Anatomy) -> Sequence[Layer]:
    """Return all layers of a checkpoint, counted from 0."""
    layers = [Layer(checkpoint, anatomy, index) for index in range(anatomy.known().layers)]
    return CheckedSequence(layers, "layer", anatomy.base_class)
