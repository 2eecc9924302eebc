"""Two checkpoints of one shape, read side by side: changes of every head, each layer's parts, and the embeddings.

A head is stored as thin matrices, here with one row per head dimension: (d_head, d_model). Its products are
QK = W_Q W_K^T and OV = W_V W_O, both (d_model, d_model) of rank d_head at most. They are never built: with
A = L R^T, B = L' R'^T, dL = L' - L and dR = R' - R,

    B - A = dL R^T + L' dR^T
    |B - A|^2 = <dL^T dL, R^T R> + <L'^T L', dR^T dR> + 2 <dL^T L', R^T dR>,

where <X, Y> is the sum of X * Y over all cells, and every factor is (d_head, d_head). Equal factors give exactly 0. A
product in another basis (L M, R M^-T) is recognised as equal to within 1e-7 in fp64.

W_Q by itself depends on the basis that training happened to choose: W_Q M and W_K M^-T are the same head for every
invertible M. QK and OV don't depend on it. That is why W_Q isn't compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope.anatomy.heads import read_role
from headscope.checkpoint import called
from headscope.errors import CheckpointError, InputError
from headscope.heads.head_distances import ratio, relative
from headscope.results.arrays import Named
from headscope.results.head_values import HeadValues, Measure

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.anatomy import Parameter
    from headscope.model import Model

    Rows = Float[np.ndarray, "heads d_head d_model"]
    PerHead = Float[np.ndarray, " heads"]

SIZES = ("layers", "heads", "kv_heads", "d_head", "d_model", "d_ffn", "d_embedding")
"""The sizes that two checkpoints must share. Vocabularies and numbers of positions may differ."""

RELATIVE = "relative change |b - a| / |a| in the Frobenius norm"

MEASURES = {
    measure.name: measure
    for measure in (
        Measure("qk", meaning="W_Q W_K^T: which query meets which key", unit=RELATIVE, high=None),
        Measure("ov", meaning="W_V W_O: what a token that is looked at adds", unit=RELATIVE, high=None),
        Measure("qk_bias", meaning="W_K b_Q: keys that every query favours", unit=RELATIVE, high=None),
        Measure("ov_bias", meaning="b_V W_O: what the head adds whatever it looks at", unit=RELATIVE, high=None),
    )
}
"""Changes of a head's weights.

b_K has no entry: it adds the same number to all scores of a query, and the softmax removes it.
"""

PARTS = {
    "attention": ("layer.query", "layer.key", "layer.value", "layer.attention_output"),
    "feed_forward": ("layer.ffn_gate", "layer.ffn_in", "layer.ffn_out"),
    "norms": ("layer.attention_input_norm", "layer.attention_norm", "layer.ffn_input_norm", "layer.output_norm"),
}
"""A layer's parts -> the roles of their parameters, weights and biases."""

BLOCK = 1 << 20
"""Numbers of a large table that are held at once."""


@dataclass(frozen=True, eq=False)
class WeightChanges:
    """Differences between the weights of two checkpoints.

    Attributes:
        heads: name of MEASURES -> (layers, heads).
        parts: name of PARTS -> (layers,), relative change of all parameters of that part.
        outside: parameter outside the layers (`embeddings.word`, `pooler`) -> relative change.
        left_out: parameters that could not be compared -> the reason.
    """

    heads: dict[str, HeadValues]
    parts: dict[str, Named]
    outside: dict[str, float]
    left_out: dict[str, str]


def check_shapes(a: Model, b: Model) -> None:
    """Refuse two checkpoints that are not of one shape.

    Raises:
        InputError: family, layers, heads or a width differ; the message names the difference.
        UnsupportedError: the heads of one of them aren't known.
    """
    sizes_a, sizes_b = a.anatomy.known(), b.anatomy.known()
    family_a, family_b = a.anatomy.family, b.anatomy.family
    assert family_a is not None
    assert family_b is not None
    differences = [f"family {family_a.name} and {family_b.name}"] if family_a.name != family_b.name else []
    differences += [
        f"{name} {getattr(sizes_a, name)} and {getattr(sizes_b, name)}"
        for name in SIZES
        if getattr(sizes_a, name) != getattr(sizes_b, name)
    ]
    if differences:
        raise InputError(
            f"the checkpoints have different shapes: {', '.join(differences)}",
            where=f"{a.name} and {b.name}",
            advice="compare checkpoints of one shape, such as a model and what it was fine-tuned into; "
            "two models of different shapes can be surveyed one by one",
        )


def weight_changes(a: Model, b: Model) -> WeightChanges:
    """Read both checkpoints layer by layer and compare them in fp64. No forward pass, no torch.

    They are of one shape: see `check_shapes`.

    Raises:
        CheckpointError: a weight is missing, or not a finite number.
    """
    layers = range(a.anatomy.known().layers)
    by_layer = [_heads_of(a, b, layer) for layer in layers]
    heads = {
        name: HeadValues.of(measure, np.stack([row[name] for row in by_layer])) for name, measure in MEASURES.items()
    }
    parts = {
        name: Named(name, ("layers",), np.array([_change(a, b, _roles(a, stems, at), at) for at in layers]))
        for name, stems in PARTS.items()
    }
    outside: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for stem, roles in _outside(a, b).items():
        if reason := _incomparable(a, b, roles):
            left_out[stem] = reason
        else:
            outside[stem] = _change(a, b, roles, None)
    return WeightChanges(heads, parts, outside, left_out)


def _heads_of(a: Model, b: Model, layer: int) -> dict[str, Float[np.ndarray, " heads"]]:
    """(heads,) of each measure."""
    q, k, v, o, b_q, b_v = _factors(a, layer)
    new_q, new_k, new_v, new_o, new_b_q, new_b_v = _factors(b, layer)
    return {
        "qk": product_change(q, k, new_q, new_k),
        "ov": product_change(v, o, new_v, new_o),
        "qk_bias": relative(_through(b_q, k), _through(new_b_q, new_k)),
        "ov_bias": relative(_through(b_v, o), _through(new_b_v, new_o)),
    }


def _factors(model: Model, layer: int) -> tuple[np.ndarray, ...]:
    """W_Q, W_K, W_V, W_O of all heads as (heads, d_head, d_model), then b_Q and b_V as (heads, d_head); fp64."""
    sizes = model.anatomy.known()
    across = (-1, sizes.d_head, sizes.d_model)
    weights = [_read(model, f"layer.{part}.weight", layer).reshape(across) for part in ("query", "key", "value")]
    output = _read(model, "layer.attention_output.weight", layer).T.reshape(across)
    biases = [_read(model, f"layer.{part}.bias", layer).reshape(across[:2]) for part in ("query", "value")]
    shared = sizes.heads // sizes.kv_heads
    query, key, value = (np.repeat(part, sizes.heads // len(part), axis=0) for part in weights)
    return query, key, value, output, biases[0], np.repeat(biases[1], shared, axis=0)


def _through(
    biases: Float[np.ndarray, "heads d_head"], rows: Float[np.ndarray, "heads d_head d_model"]
) -> Float[np.ndarray, "heads d_model"]:
    """Each head's bias in the residual stream's coordinates."""
    return np.einsum("hd,hdm->hm", biases, rows)


def _read(model: Model, role: str, layer: int | None, rows: slice | None = None) -> np.ndarray:
    """A parameter, or some of its rows, in fp64.

    Raises:
        CheckpointError: it holds NaN or infinity, and a change from or to those has no value.
    """
    values = read_role(model.checkpoint, model.anatomy, role, layer, rows).astype(np.float64)
    if not np.isfinite(values).all():
        raise CheckpointError(
            f"{model.anatomy.parameter(role, layer).stored} holds NaN or infinity",
            where=model.checkpoint.where,
            advice="compare a checkpoint whose training did not diverge",
        )
    return values


def _roles(model: Model, stems: Iterable[str], layer: int) -> list[str]:
    """The roles of a part that the family has."""
    return [
        f"{stem}.{end}" for stem in stems for end in ("weight", "bias") if model.anatomy.has(f"{stem}.{end}", layer)
    ]


def _outside(a: Model, b: Model) -> dict[str, list[str]]:
    """Parameters outside the layers, by what they belong to. Classifiers and other tops are not among them."""
    stems: dict[str, list[str]] = {}
    for row in (*a.parameters, *b.parameters):
        if row.role is not None and row.layer is None:
            roles = stems.setdefault(row.role.rpartition(".")[0], [])
            if row.role not in roles:
                roles.append(row.role)
    return stems


def _incomparable(a: Model, b: Model, roles: Iterable[str]) -> str:
    """The reason why these parameters can't be compared; empty where they can."""
    for role in roles:
        for model in (a, b):
            if not model.anatomy.has(role):
                return f"{called(model.name)} has none"
        first, other = (model.anatomy.parameter(role).shape for model in (a, b))
        if first != other:
            return f"shapes {first} and {other}"
    return ""


def _change(a: Model, b: Model, roles: Iterable[str], layer: int | None) -> float:
    """The relative change of several parameters taken as one vector, in blocks of rows."""
    change = base = 0.0
    for role in roles:
        for rows in _blocks(a.anatomy.parameter(role, layer)):
            old = _read(a, role, layer, rows)
            change += float(np.square(_read(b, role, layer, rows) - old).sum())
            base += float(np.square(old).sum())
    return 0.0 if change == 0 else float(np.sqrt(change / base)) if base else float("inf")


def _blocks(parameter: Parameter) -> Iterable[slice]:
    rows = parameter.shape[0]
    step = max(1, BLOCK * rows // max(parameter.count, 1))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def product_change(left: Rows, right: Rows, new_left: Rows, new_right: Rows) -> PerHead:
    """The change |B - A| / |A| of each head's product in the Frobenius norm; the formula is at the top.

    Args:
        left: (heads, d_head, d_model), L^T of A = L R^T.
        right: (heads, d_head, d_model), R^T.
        new_left: L'^T of B.
        new_right: R'^T of B.
    """
    d_left, d_right = new_left - left, new_right - right
    square = (
        _inner(_gram(d_left, d_left), _gram(right, right))
        + _inner(_gram(new_left, new_left), _gram(d_right, d_right))
        + 2 * _inner(_gram(d_left, new_left), _gram(right, d_right))
    )
    base = _inner(_gram(left, left), _gram(right, right))
    return ratio(np.sqrt(np.maximum(square, 0)), np.sqrt(np.maximum(base, 0)))


def _gram(
    first: Float[np.ndarray, "heads d_head d_model"], other: Float[np.ndarray, "heads d_head d_model"]
) -> Float[np.ndarray, "heads d_head d_head"]:
    return first @ other.swapaxes(-1, -2)


def _inner(
    first: Float[np.ndarray, "heads d_head d_head"], other: Float[np.ndarray, "heads d_head d_head"]
) -> Float[np.ndarray, " heads"]:
    return (first * other).sum((-2, -1))
