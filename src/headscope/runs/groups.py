"""What silencing a group of heads does to one output, beside as many heads at random.

Layers differ more than groups do, so a group is compared with draws that have as many heads of each layer: without
that, any group of the last layer looks vital, and one of early layers idle. A group of whole layers has no such draws;
it stands beside as many heads of any layer. All numbers are of one text: they are no test over texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headscope.encoder.task_heads import pooled
from headscope.errors import CheckpointError
from headscope.heads.kinds import FINDINGS
from headscope.runs.edits import Edit, Edits
from headscope.runs.engine import NumpyRunner, base_readings
from headscope.runs.targets import Readings, choose, read
from headscope.runs.texts import as_input, encoded_trace

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.model import Model
    from headscope.results.effect_records import Target, Wanted
    from headscope.traces import Trace

DRAWS = 100
ORDERS = 0.4
"""Random orders in which heads are silenced one after another: a part of all draws."""
POINTS, STEPS = 36, 6
"""Most numbers of heads at which the curve is read; and at which random orders are, after whole layers' worth."""
RANGE = (5, 50, 95)
"""What is said of draws: percentiles."""

Heads = frozenset[int]
"""Heads by layer * heads + head."""


class Group(NamedTuple):
    """Heads that are silenced together.

    Attributes:
        kind: `first` (most of their weight is on the first token), `layer`, or `label`.
        name: the token, the layer's number, the label.
        heads: layer * heads + head.
    """

    kind: str
    name: Any
    heads: Heads


@dataclass(frozen=True)
class GroupEffect:
    """One group, silenced.

    Attributes:
        group: the heads.
        value: the output without them.
        turn: (tokens,), 1 - cosine of each token's last hidden state with what it is otherwise.
        together: how far the text's vector moves, over its length.
        summed: the same of the sum of the moves that each head makes alone.
        drawn: the outputs without as many heads of any layer.
        matched: without as many of each layer; None for whole layers.
    """

    group: Group
    value: float
    turn: Float[np.ndarray, " tokens"]
    together: float
    summed: float
    drawn: Float[np.ndarray, " draws"]
    matched: Float[np.ndarray, " draws"] | None


@dataclass(frozen=True)
class GroupEffects:
    """Groups of heads, silenced: the output is a probability or a cosine where it has one, else the target's number.

    Attributes:
        target: the output.
        base: its number as it is.
        alone: (layers, heads), without one head.
        groups: those that rest on the first token, each layer, and those with a label in common.
        order: heads by their weight on the first token, the most first.
        curve: number of heads -> the output without as many of the first in `order`.
        at_random: the same for random orders, (orders,).
    """

    target: Target
    base: float
    alone: Float[np.ndarray, "layers heads"]
    groups: list[GroupEffect]
    order: list[int]
    curve: Mapping[int, float]
    at_random: Mapping[int, Float[np.ndarray, " orders"]]


def silenced_groups(
    model: Model,
    trace: Trace,
    wanted: Wanted = None,
    labels: Iterable[tuple[Any, Sequence[tuple[int, int]]]] = (),
    *,
    draws: int = DRAWS,
    progress: Callable[[int, int], None] | None = None,
) -> GroupEffects:
    """Silence groups of heads in a text, and as many at random: a few hundred passes, side by side.

    Args:
        model: the model.
        trace: the text, with all heads.
        wanted: the output, as in headscope.runs.targets.
        labels: names, each with its heads, (layer, head).
        draws: sets of heads at random beside each group.
        progress: called with the runs done and all runs.

    Raises:
        InputError: no such output.
        UnsupportedError: the model lacks it.
        CheckpointError: a number is not finite.
    """
    sizes = model.anatomy.computable()
    wide, all_heads = sizes.heads, sizes.layers * sizes.heads
    share = trace.statistics("first")["first"].array.ravel()
    order = [int(n) for n in np.argsort(-share, kind="stable")]
    layers = [
        Group("layer", layer, frozenset(range(layer * wide, (layer + 1) * wide))) for layer in range(sizes.layers)
    ]
    groups = [
        Group("first", trace.keys.tokens[0], frozenset(np.flatnonzero(share > FINDINGS["cls"]).tolist())),
        *layers,
        *(Group("label", name, frozenset(layer * wide + head for layer, head in heads)) for name, heads in labels),
    ]
    groups = [group for group in groups if group.heads]
    generator = np.random.default_rng(0)
    orders = [generator.permutation(all_heads).tolist() for _ in range(draws)]
    drawn = {len(group.heads): [frozenset(one[: len(group.heads)]) for one in orders] for group in groups}
    matched = [_matched(group.heads, wide, draws, generator) for group in groups]
    points = [-(-at * all_heads // POINTS) for at in range(1, POINTS + 1)]
    every = wide * -(-sizes.layers // STEPS)
    curve = {count: frozenset(order[:count]) for count in points}
    at_random = {
        count: [frozenset(one[:count]) for one in orders[: round(ORDERS * draws)]]
        for count in (*range(every, all_heads, every), all_heads)
    }
    sets = [*curve.values(), *(one for of in (*drawn.values(), *matched, *at_random.values()) for one in of)]
    runs = _Runs(model, trace, wanted, progress)
    values = runs.read([frozenset([n]) for n in range(all_heads)] + [group.heads for group in groups], sets)

    def numbers(of: list[Heads]) -> Float[np.ndarray, " draws"]:
        return np.array([values[one] for one in of])

    effects = []
    for group, alike in zip(groups, matched, strict=True):
        summed = sum(runs.moves[frozenset([n])] for n in group.heads)
        together, single = (float(np.linalg.norm(move)) for move in (runs.moves[group.heads], summed))
        own = numbers(alike) if alike else None
        any_layer = numbers(drawn[len(group.heads)])
        turn = runs.turns[group.heads]
        effects.append(GroupEffect(group, values[group.heads], turn, together, single, any_layer, own))
    return GroupEffects(
        runs.target,
        runs.before,
        numbers([frozenset([n]) for n in range(all_heads)]).reshape(sizes.layers, wide),
        effects,
        order,
        {count: values[heads] for count, heads in curve.items()},
        {count: numbers(of) for count, of in at_random.items()},
    )


def _matched(heads: Heads, wide: int, draws: int, generator: np.random.Generator) -> list[Heads]:
    """Draws with as many heads of each layer; none for whole layers."""
    layers = [n // wide for n in heads]
    counts = {layer: layers.count(layer) for layer in sorted({*layers})}
    if all(count == wide for count in counts.values()):
        return []
    return [
        frozenset(
            layer * wide + int(head)
            for layer, count in counts.items()
            for head in generator.choice(wide, count, replace=False)
        )
        for _ in range(draws)
    ]


@dataclass
class _Runs:
    """Runs of a text with heads silenced, and what is read of them."""

    model: Model
    trace: Trace
    wanted: Wanted
    progress: Callable[[int, int], None] | None
    turns: dict[Heads, Float[np.ndarray, " tokens"]] = field(default_factory=dict)
    moves: dict[Heads, Float[np.ndarray, " d_model"]] = field(default_factory=dict)
    """Changes of the text's vector, over its length."""

    def __post_init__(self) -> None:
        self.runner = NumpyRunner(self.model)
        encoded = encoded_trace(self.trace)
        self.prompt = encoded.prompt
        self.base = self.runner.base([as_input(encoded)])
        self.target = choose(self.model, encoded, self.base.last, self.wanted)
        self.before = float(self._number(base_readings(self.model, self.base, [self.target]))[0])

    def read(self, whole: Iterable[Heads], others: Iterable[Heads]) -> dict[Heads, float]:
        """The output without each set of heads, every set once; of `whole`, turns and moves too."""
        first, values = list(dict.fromkeys(whole)), dict.fromkeys(others, np.nan)
        rest = sorted((one for one in values if one not in {*first}), key=min)
        done, total = 0, len(first) + len(rest)
        last = self.base.last[None]
        old = self._vector(last)
        for at, (hidden,) in self.runner.states(self.base, self._edits(first)):
            self._tell(done, total)
            rows = hidden if self.target.places is None else hidden[:, list(self.target.places)]
            numbers = self._number(read(self.model, self.target, rows))
            moves = (self._vector(hidden) - old) / np.linalg.norm(old)
            turns = 1 - (_unit(hidden) * _unit(last)).sum(-1)
            for n, run in enumerate(at):
                values[first[run]] = float(numbers[n])
                self.moves[first[run]], self.turns[first[run]] = moves[n], turns[n]
            done += len(at)
        step = self.runner.together(self.base)
        for start in range(0, len(rest), step):
            self._tell(done + start, total)
            part = rest[start : start + step]
            numbers = self._number(self.runner.run(self.base, self._edits(part), [self.target]))
            values |= dict(zip(part, numbers[:, 0].tolist(), strict=True))
        self._tell(total, total)
        return values

    def _number(self, readings: Readings) -> Float[np.ndarray, "..."]:
        """The probability or cosine, where there is one."""
        found = readings.values if readings.aside is None else readings.aside
        if np.isfinite(found).all():
            return found
        raise CheckpointError(
            "with heads silenced the output is not a number",
            where=self.model.checkpoint.where,
            advice="`headscope verify` says where NaN or infinity comes from",
        )

    def _vector(self, hidden: Float[np.ndarray, "runs tokens d_model"]) -> Float[np.ndarray, "runs d_model"]:
        return pooled(hidden, self.model.pooling, self.prompt)

    def _edits(self, sets: Iterable[Heads]) -> list[Edits]:
        wide = self.model.anatomy.known().heads
        return [frozenset(Edit(*divmod(n, wide)) for n in one) for one in sets]

    def _tell(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(done, total)  # which may end the runs by an error


def _unit(hidden: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return hidden.astype(np.float64) / np.linalg.norm(hidden, axis=-1, keepdims=True)
