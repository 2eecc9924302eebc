"""Effects of silencing a group of heads on one output, beside as many heads at random.

Layers differ more than groups do, so a group is compared with draws that have as many heads of each layer: without
that, any group of the last layer looks vital, and one of early layers idle. A group of whole layers has no such draws;
it stands beside as many heads of any layer. All numbers are of one text: they are no test over texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headscope.encoder.task_heads import pooled
from headscope.errors import not_a_number
from headscope.heads.head_distances import turned
from headscope.heads.kinds import FINDINGS
from headscope.runs.engine import Edit, Edits, NumpyRunner, base_readings
from headscope.runs.targets import Readings, choose, read
from headscope.runs.texts import as_input, self_attended

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
"""Percentiles that draws are described by."""

Heads = frozenset[int]
"""Heads by layer * heads + head."""
Labels = Iterable[tuple[Any, Sequence[tuple[int, int]]]]
"""Names, each with its heads, (layer, head)."""


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
    labels: Labels = (),
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
    order, groups = _groups(trace, sizes.heads, labels)
    every = [frozenset([n]) for n in range(len(order))]
    # Beside the groups: sets of as many heads of any layer (drawn), and of as many of each layer (matched; none for
    # whole layers); by number of heads, those with most weight on the first token (curve), and first in random orders.
    generator, total = np.random.default_rng(0), len(order)
    orders = [generator.permutation(total).tolist() for _ in range(draws)]
    some, step = orders[: round(ORDERS * draws)], sizes.heads * -(-total // sizes.heads // STEPS)
    drawn = {count: [frozenset(one[:count]) for one in orders] for count in {len(group.heads) for group in groups}}
    matched = [_matched(group.heads, sizes.heads, draws, generator) for group in groups]
    curve = {count: frozenset(order[:count]) for count in (-(-at * total // POINTS) for at in range(1, POINTS + 1))}
    at_random = {count: [frozenset(one[:count]) for one in some] for count in (*range(step, total, step), total)}
    runs = _Runs(model, trace, wanted, progress or (lambda done, total: None))
    others = chain(curve.values(), *drawn.values(), *matched, *at_random.values())
    runs.read(every + [group.heads for group in groups], others)
    return GroupEffects(
        runs.target,
        runs.before,
        runs.numbers(every).reshape(sizes.layers, sizes.heads),
        [runs.effect(group, drawn[len(group.heads)], sets) for group, sets in zip(groups, matched, strict=True)],
        order,
        {count: runs.values[heads] for count, heads in curve.items()},
        {count: runs.numbers(sets) for count, sets in at_random.items()},
    )


def _groups(trace: Trace, wide: int, labels: Labels) -> tuple[list[int], list[Group]]:
    """All heads by their weight on the first token, and the groups; `wide` is the number of heads of a layer."""
    share = trace.statistics("first")["first"].array.ravel()
    order = [int(n) for n in np.argsort(-share, kind="stable")]
    first = Group("first", trace.keys.tokens[0], frozenset(np.flatnonzero(share > FINDINGS["cls"]).tolist()))
    return order, [
        *([first] if first.heads else []),
        *(Group("layer", at // wide, frozenset(range(at, at + wide))) for at in range(0, len(order), wide)),
        *(Group("label", name, frozenset(layer * wide + head for layer, head in heads)) for name, heads in labels),
    ]


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
    progress: Callable[[int, int], None]
    """It may end the runs by an error."""
    values: dict[Heads, float] = field(default_factory=dict)
    turns: dict[Heads, Float[np.ndarray, " tokens"]] = field(default_factory=dict)
    moves: dict[Heads, Float[np.ndarray, " d_model"]] = field(default_factory=dict)
    """Changes of the text's vector, over its length."""

    def __post_init__(self) -> None:
        self.runner = NumpyRunner(self.model)
        encoded = self_attended(self.trace)
        self.prompt = encoded.prompt
        self.base = self.runner.base([as_input(encoded)])
        self.target = choose(self.model, encoded, self.base.last, self.wanted)
        self.before = float(self._number(base_readings(self.model, self.base, [self.target]))[0])

    def read(self, whole: Iterable[Heads], others: Iterable[Heads]) -> None:
        """Read the output without each set of heads, every set once; of `whole`, turns and moves too."""
        first = list(dict.fromkeys(whole))
        rest = sorted({*others} - {*first}, key=sorted)
        done, total = 0, len(first) + len(rest)
        last = self.base.last[None]
        old = self._vector(last)
        for at, (hidden,) in self.runner.states(self.base, self._edits(first)):
            self.progress(done, total)
            rows = hidden if self.target.places is None else hidden[:, list(self.target.places)]
            numbers = self._number(read(self.model, self.target, rows))
            moves = (self._vector(hidden) - old) / np.linalg.norm(old)
            turns = turned(hidden, last)
            for n, run in enumerate(at):
                self.values[first[run]] = float(numbers[n])
                self.moves[first[run]], self.turns[first[run]] = moves[n], turns[n]
            done += len(at)
        step = self.runner.together(self.base)
        for start in range(0, len(rest), step):
            self.progress(done + start, total)
            part = rest[start : start + step]
            numbers = self._number(self.runner.run(self.base, self._edits(part), [self.target]))
            self.values |= dict(zip(part, numbers[:, 0].tolist(), strict=True))
        self.progress(total, total)

    def numbers(self, sets: Iterable[Heads]) -> Float[np.ndarray, " sets"]:
        """The outputs without these."""
        return np.array([self.values[one] for one in sets])

    def effect(self, group: Group, drawn: list[Heads], matched: list[Heads]) -> GroupEffect:
        """A group's record, beside sets of as many heads, and of as many of each layer."""
        summed = sum(self.moves[frozenset([n])] for n in group.heads)
        return GroupEffect(
            group,
            self.values[group.heads],
            self.turns[group.heads],
            float(np.linalg.norm(self.moves[group.heads])),
            float(np.linalg.norm(summed)),
            self.numbers(drawn),
            self.numbers(matched) if matched else None,
        )

    def _number(self, readings: Readings) -> Float[np.ndarray, "..."]:
        """The probability or cosine, where there is one."""
        found = readings.values if readings.aside is None else readings.aside
        if np.isfinite(found).all():
            return found
        raise not_a_number("with heads silenced the output is not a number", self.model.checkpoint.where)

    def _vector(self, hidden: Float[np.ndarray, "runs tokens d_model"]) -> Float[np.ndarray, "runs d_model"]:
        return pooled(hidden, self.model.pooling, self.prompt)

    def _edits(self, sets: Iterable[Heads]) -> list[Edits]:
        wide = self.model.anatomy.known().heads
        return [frozenset(Edit(*divmod(n, wide)) for n in one) for one in sets]
