"""The steps of a pass held at one text: each affine in what enters it, followed forward and backward.

A step maps x to x A + b with A and b held. `into` carries shares of x forward, without b or (`affine`) with it; `back`
carries the gradient of a number backward, and says what b adds to that number, so that with the number s = g . y + c

    y = x A + b,    s = (g A^T) . x + (g . b + c).

A nonlinear step is held at the point where the text puts it: attention at its weights, so that rotations and relative
distances need no rule of their own; a norm at its deviation; an activation f at x by its tangent f'(x), with the rest
f(x) - f'(x) x in b, or by its ratio f(x) / x, with nothing in b; a gate f(a) u by half of each factor. Every step then
gives its true output for its true input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from headscope.attention.activations import activate, slope
from headscope.encoder.distances import rotate
from headscope.explain.residual import blocks_of_rows, weights_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.encoder import Encoder
    from headscope.encoder.distances import Angles
    from headscope.traces import LayerRecord

    Rows = Float[np.ndarray, "*shares tokens width"]
    Sums = Float[np.ndarray, "*shares"]

SLOPES = ("tangent", "ratio")
"""The slope at which an activation is held."""

SMALL = np.float32(1e-6)
"""Below this, an input's ratio f(x) / x is taken at this distance from 0."""


@runtime_checkable
class Step(Protocol):
    """A map x A + b of rows."""

    def into(self, x: Rows, *, affine: bool = False) -> Rows:
        """x A, or x A + b."""

    def back(self, g: Rows) -> tuple[Rows, Sums]:
        """g A^T, and g . b."""


@dataclass(frozen=True, eq=False)
class Affine:
    """x W + b of a Linear, with the paper's W, the transpose of what is stored."""

    stored: Float[np.ndarray, "out into"]
    bias: Float[np.ndarray, " out"] | None = None

    def into(self, x: Rows, *, affine: bool = False) -> Rows:
        """x W."""
        y = x @ self.stored.T
        return y + self.bias if affine and self.bias is not None else y

    def back(self, g: Rows) -> tuple[Rows, Sums]:
        """g W^T."""
        return g @ self.stored, _zero(g) if self.bias is None else (g @ self.bias).sum(-1, dtype=np.float64)

    def rows(self, at: slice | Sequence[int] | Int[np.ndarray, " n"]) -> Affine:
        """Some of its outputs alone."""
        return Affine(self.stored[at], None if self.bias is None else self.bias[at])


@dataclass(frozen=True, eq=False)
class HeldNorm:
    """A norm held at one text's deviations.

    Attributes:
        factor: (tokens, 1), one over each row's deviation.
        scale: the norm's weight.
        shift: its bias; None if it has none.
        centred: True for LayerNorm, False for RMSNorm.
    """

    factor: Float[np.ndarray, "tokens 1"]
    scale: Float[np.ndarray, " width"]
    shift: Float[np.ndarray, " width"] | None
    centred: bool

    def into(self, x: Rows, *, affine: bool = False) -> Rows:
        """(x - its mean) * factor * scale."""
        y = (x - x.mean(axis=-1, keepdims=True) if self.centred else x) * self.factor * self.scale
        return y + self.shift if affine and self.shift is not None else y

    def back(self, g: Rows) -> tuple[Rows, Sums]:
        """The gradient before the norm."""
        added = _zero(g) if self.shift is None else (g @ self.shift).sum(-1, dtype=np.float64)
        g = g * self.scale
        if self.centred:
            g -= g.mean(axis=-1, keepdims=True)
        g *= self.factor
        return g, added


@dataclass(frozen=True, eq=False)
class Scaled:
    """Each number times its own factor, plus its own rest: an activation, or one side of a gate."""

    factor: Float[np.ndarray, "tokens width"]
    rest: Float[np.ndarray, "tokens width"] | None = None

    def into(self, x: Rows, *, affine: bool = False) -> Rows:
        """x * factor."""
        y = x * self.factor
        return y + self.rest if affine and self.rest is not None else y

    def back(self, g: Rows) -> tuple[Rows, Sums]:
        """g * factor."""
        added = _zero(g) if self.rest is None else np.einsum("...ij,ij->...", g, self.rest, dtype=np.float64)
        return g * self.factor, added


@dataclass(frozen=True, eq=False)
class Pooled:
    """Weighted sums of rows."""

    weights: Float[np.ndarray, "sums rows"]

    @classmethod
    def mean(cls, places: slice, rows: int, factor: float = 1.0) -> Pooled:
        """The mean of the rows at some places, times a factor."""
        row = np.zeros((1, rows))
        row[:, places] = 1
        return cls((row / row.sum() * factor).astype(np.float32))

    def into(self, x: Rows, *, affine: bool = False) -> Rows:
        """The sums."""
        return self.weights @ x

    def back(self, g: Rows) -> tuple[Rows, Sums]:
        """Each sum's gradient, to its rows."""
        return self.weights.T @ g, _zero(g)


@dataclass(frozen=True, eq=False)
class Rotated:
    """Values turned by their positions: RoFormers whose config says rotary_value."""

    cos: Angles
    sin: Angles
    pairs: bool
    heads: int

    def into(self, x: Rows, *, affine: bool = False) -> Rows:
        """Every head's pairs of coordinates turned forward."""
        return _joined(rotate(_split(x, self.heads), self.cos, self.sin, pairs=self.pairs))

    def back(self, g: Rows) -> tuple[Rows, Sums]:
        """Turned back."""
        return _joined(rotate(_split(g, self.heads), self.cos, -self.sin, pairs=self.pairs)), _zero(g)


@dataclass(frozen=True, eq=False)
class Mixed:
    """Contexts from values, with the weights of one text's pass: sum_j p_ij v_j in every head.

    Weights are computed again in blocks of queries, and kept nowhere.
    """

    record: LayerRecord

    def blocks(self) -> Iterator[tuple[Int[np.ndarray, " n"], Float[np.ndarray, "heads n tokens"]]]:
        """A few queries at a time, and their weights."""
        heads, tokens, _ = self.record.q.shape
        return ((rows, weights_of(self.record, rows)) for rows in blocks_of_rows(heads, tokens, tokens))

    def into(self, x: Rows, *, affine: bool = False) -> Rows:
        """(…, tokens, all values side by side) to (…, tokens, all contexts)."""
        record = self.record
        v = _split(x, len(record.k))
        v = np.repeat(v, len(record.q) // len(record.k), axis=-3)
        contexts = np.empty_like(v)
        for rows, tile in self.blocks():
            contexts[..., rows, :] = tile @ v
        return _joined(contexts)

    def back(self, g: Rows) -> tuple[Rows, Sums]:
        """sum_i p_ij g_i, summed over the heads that share values."""
        contexts, shared = _split(g, len(self.record.q)), len(self.record.q) // len(self.record.k)
        total = np.zeros_like(contexts)
        for rows, tile in self.blocks():
            total += tile.swapaxes(-1, -2) @ contexts[..., rows, :]
        if shared > 1:
            total = total.reshape(*total.shape[:-3], -1, shared, *total.shape[-2:]).sum(axis=-3)
        return _joined(total), _zero(g)


@dataclass(frozen=True, eq=False)
class Convolved:
    """DeBERTa v2's convolution of neighbouring rows; beyond the text's ends, rows are 0.

    Attributes:
        kernel: (out, in of one group, size), as torch stores it.
        bias: (out,).
    """

    kernel: Float[np.ndarray, "out into size"]
    bias: Float[np.ndarray, " out"]

    def _taps(self) -> Iterator[tuple[int, slice, Float[np.ndarray, "out into"]]]:
        """Each offset and group: how far the row that is read stands ahead, its columns, and the matrix."""
        width, into, size = self.kernel.shape
        for at in range(size):
            for start in range(0, width, into):
                part = slice(start, start + into)
                yield at - size // 2, part, self.kernel[part, :, at]

    def into(self, x: Rows, *, affine: bool = False) -> Rows:
        """sum_t x_(i + t) W_t."""
        y = np.zeros_like(x)
        for ahead, part, stored in self._taps():
            read, written = _shifted(x.shape[-2], ahead)
            y[..., written, part] += x[..., read, part] @ stored.T
        return y + self.bias if affine else y

    def back(self, g: Rows) -> tuple[Rows, Sums]:
        """sum_t g_(i - t) W_t^T."""
        total = np.zeros_like(g)
        for ahead, part, stored in self._taps():
            read, written = _shifted(g.shape[-2], ahead)
            total[..., read, part] += g[..., written, part] @ stored
        return total, (g @ self.bias).sum(-1, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Chain:
    """Steps one after the other."""

    steps: tuple[Step, ...]

    def into(self, x: Rows, *, affine: bool = False) -> Rows:
        """Through all steps, the first one first."""
        for step in self.steps:
            x = step.into(x, affine=affine)
        return x

    def back(self, g: Rows) -> tuple[Rows, Sums]:
        """Through all steps, the last one first."""
        total = _zero(g)
        for step in reversed(self.steps):
            g, added = step.back(g)
            total = total + added
        return g, total


SAME = Chain(())
"""The step that changes nothing."""


@dataclass(frozen=True, eq=False)
class Beside:
    """Steps that read the same rows and whose outputs are added; SAME among them adds the rows themselves."""

    steps: tuple[Step, ...]

    def into(self, x: Rows, *, affine: bool = False) -> Rows:
        """The sum of what the steps give."""
        first, *others = (step.into(x, affine=affine) for step in self.steps)
        return sum(others, first)

    def back(self, g: Rows) -> tuple[Rows, Sums]:
        """The sum of the gradients."""
        (first, added), *others = (step.back(g) for step in self.steps)
        return sum((one for one, _ in others), first), sum((biases for _, biases in others), added)


def held_norm(encoder: Encoder, x: Float[np.ndarray, "tokens width"], role: str, layer: int | None = None) -> HeldNorm:
    """The family's norm at its true deviations of x."""
    family = encoder.anatomy.family
    centred = family is None or not family.rms_norm
    square = x.var(axis=-1, keepdims=True) if centred else np.square(x).mean(axis=-1, keepdims=True)
    factor = 1 / np.sqrt(square + encoder.norm_eps)
    return HeldNorm(factor, encoder.weight(f"{role}.weight", layer), encoder.held(f"{role}.bias", layer), centred)


def back_together(steps: Sequence[Step], gs: Sequence[Rows]) -> tuple[list[Rows], list[Sums]]:
    """`back` of the same step of several texts, (tokens, width) each; what they share as a matrix is one product."""
    first, count = steps[0], range(len(steps))
    if isinstance(first, Affine) and all(isinstance(step, Affine) and step.stored is first.stored for step in steps):
        ends = np.cumsum([len(g) for g in gs])
        products = np.split(np.concatenate(gs) @ first.stored, ends[:-1])
        return products, [_zero(g) if first.bias is None else (g @ first.bias).sum(dtype=np.float64) for g in gs]
    if isinstance(first, Chain):
        totals, gs = [_zero(g) for g in gs], list(gs)
        for inner in reversed(list(zip(*(step.steps for step in steps if isinstance(step, Chain)), strict=True))):
            gs, added = back_together(inner, gs)
            totals = [totals[at] + added[at] for at in count]
        return gs, totals
    if isinstance(first, Beside):
        beside = zip(*(step.steps for step in steps if isinstance(step, Beside)), strict=True)
        sums, totals = zip(*(back_together(inner, gs) for inner in beside), strict=True)
        return [sum(of[1:], of[0]) for of in zip(*sums, strict=True)], [sum(of) for of in zip(*totals, strict=True)]
    each = [step.back(g) for step, g in zip(steps, gs, strict=True)]
    return [g for g, _ in each], [added for _, added in each]


def held_linear(encoder: Encoder, role: str, layer: int | None = None) -> Affine:
    """The Linear with this role."""
    return Affine(encoder.weight(f"{role}.weight", layer), encoder.held(f"{role}.bias", layer))


def held_activation(
    activation: str, x: Float[np.ndarray, "tokens width"], slopes: str
) -> tuple[Scaled, Float[np.ndarray, "tokens width"]]:
    """An activation at its true inputs, which are left as they are, and its values."""
    if slopes == "tangent":
        values, factor = x.copy(), slope(activation, x)
        activate(activation, values)
        rest = factor * x
        return Scaled(factor, np.subtract(values, rest, out=rest)), values
    safe = np.where(np.abs(x) < SMALL, np.copysign(SMALL, x), x)
    values = safe.copy()
    activate(activation, values)
    factor = values / safe
    return Scaled(factor), factor * x


def held_gate(
    activation: str, gate: Float[np.ndarray, "tokens d_ffn"], x: Float[np.ndarray, "tokens d_ffn"], slopes: str
) -> tuple[Scaled, Scaled, Float[np.ndarray, "tokens d_ffn"]]:
    """f(gate) x at its true inputs: half of it as the gate's, half of it as x's; and its values."""
    held, values = held_activation(activation, gate, slopes)
    half = x * np.float32(0.5)
    of_gate = Scaled(held.factor * half, None if held.rest is None else held.rest * half)
    return of_gate, Scaled(values * np.float32(0.5)), values * x


def _split(x: Rows, heads: int) -> Float[np.ndarray, "*shares heads tokens d_head"]:
    return x.reshape(*x.shape[:-1], heads, -1).swapaxes(-2, -3)


def _joined(x: Float[np.ndarray, "*shares heads tokens d_head"]) -> Rows:
    turned = x.swapaxes(-2, -3)
    return turned.reshape(*turned.shape[:-2], -1)


def _shifted(tokens: int, ahead: int) -> tuple[slice, slice]:
    """The rows that are read and those that are written where a step reads rows that stand ahead."""
    return slice(max(0, ahead), tokens + min(0, ahead)), slice(max(0, -ahead), tokens - max(0, ahead))


def _zero(g: Rows) -> Sums:
    return np.zeros(g.shape[:-2])
