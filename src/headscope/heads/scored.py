"""Scores with heads silenced: the change that each head makes alone, and the curve as heads go one after the other.

A score is one number for each text: 1 where a class is right, a loss, whatever a study is about. What computes it is
passed in, so that opened checkpoints and live models share all that follows. Sources: Michel, Levy and Neubig 2019,
“Are Sixteen Heads Really Better than One?” (one head, and the order by rank); Voita et al. 2019 (what can be pruned).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from headscope.attention.patterns import pairs_of
from headscope.errors import InputError
from headscope.heads.intervals import mean_interval
from headscope.results.effect_records import Removal
from headscope.results.head_values import Head, HeadValues, Measure
from headscope.settings import whole

if TYPE_CHECKING:
    from jaxtyping import Float

    Tell = Callable[[int, int], None]

    class Scores(Protocol):
        """Computes the score of each text, (sets, texts), for each set of silenced heads.

        Attributes:
            heads: those that are silenced.
            every: all of the model, which the table of changes has room for.
            measure: what the score is.
            method: how heads are silenced.
        """

        heads: Sequence[Head]
        every: Sequence[Head]
        measure: Measure
        method: str

        def __call__(self, sets: Sequence[frozenset[Head]], tell: Tell) -> Float[np.ndarray, "sets texts"]:
            """`tell` hears of parts done, and all."""


ORDERS = ("rank", "greedy")
CANDIDATES = 8
"""Heads that the greedy order measures again before one of them goes: those that cost least when last measured."""
POINTS = 16
"""Most steps at which random orders are measured."""


def change_of_each(scores: Scores, tell: Tell) -> HeadValues:
    """The change of the mean score that silencing each head makes, with its 95 % interval over texts.

    NaN stands for heads that are not silenced; `tell` hears of progress.
    """
    found = checked(scores([frozenset(), *(frozenset({head}) for head in scores.heads)], tell))
    shape = tuple(1 + max(place) for place in zip(*scores.heads, *scores.every, strict=True))
    changes = np.full((found.shape[1], *shape), np.nan)
    for at, (layer, head) in enumerate(scores.heads, 1):
        changes[:, layer, head] = found[at] - found[0]
    mean, low, high = mean_interval(changes)
    return HeadValues.of(scores.measure, mean, low=low, high=high, over="texts", interval="t", each=tuple(changes))


def removal(
    scores: Scores,
    *,
    order: str | Sequence[Head],
    less_is_better: bool,
    random: int,
    steps: int | None,
    tell: Tell,
) -> Removal:
    """Silence heads one after the other, and read the score after each.

    An order that is chosen is chosen on the first, third, … text; the curve is of the others.

    Args:
        scores: computes scores.
        order: `rank`: the head first whose loss alone costs least; `greedy`: at each step the one that costs least
            then, of the 8 that cost least when they were last measured; or the heads themselves.
        less_is_better: True for a loss.
        random: orders drawn at random: at each step as many heads of each layer as in `order`.
        steps: how many heads go; None for all.
        tell: hears of progress.

    Raises:
        InputError: an unknown order or head, a head twice, or fewer than four texts to choose and to report on.
    """
    heads = scores.heads
    steps = len(heads) if steps is None else whole(steps, "steps", 1, len(heads))
    random = whole(random, "random", 0)
    given = not isinstance(order, str)
    named: list[Head] = []
    if not isinstance(order, str):
        named = named_heads(order, heads)[:steps]
        steps = len(named)
    elif order not in ORDERS:
        raise InputError(f"there is no order {order!r:.40}", where="order", advice=f"use {', '.join(ORDERS)}, or heads")
    first = checked(scores([frozenset(), *(frozenset({head}) for head in ([] if given else heads))], tell))
    base, alone = first[0], first[1:]
    if not given and len(base) < 4:
        raise InputError(
            f"an order is chosen on one half of the texts and reported on the other, and there are {len(base)}",
            where="texts",
            advice="pass at least four texts, or an order of your own",
        )

    def cost(row: Float[np.ndarray, " texts"]) -> float:
        """The cost of a score, over the texts that choose."""
        change = float((row - base)[::2].mean())
        return change if less_is_better else -change

    costs = dict(zip(heads, map(cost, alone), strict=not given))
    if not given and order == "greedy":
        named, curve = greedy(scores, costs, cost, steps, tell)
    else:
        named = named if given else sorted(heads, key=lambda head: (costs[head], head))[:steps]
        curve = checked(scores([frozenset(named[:step]) for step in range(1, steps + 1)], tell))
    reported = slice(None) if given else slice(1, None, 2)
    each, before = curve[:, reported], base[reported]
    _, low, high = mean_interval((each - before).T)
    at = before.mean()
    drawn = random_orders(scores, named, heads, random, reported, tell)
    chosen_on = 0 if given else len(base) - len(before)
    return Removal(scores.measure, tuple(named), scores.method, before, each, at + low, at + high, drawn, chosen_on)


def greedy(
    scores: Scores,
    latest: dict[Head, float],
    cost: Callable[[Float[np.ndarray, " texts"]], float],
    steps: int,
    tell: Tell,
) -> tuple[list[Head], Float[np.ndarray, "steps texts"]]:
    """The order in which the head goes that costs least next, and the scores after each step.

    `latest` is what the loss of each head cost when it was last measured; the heads that go are taken out of it.
    """
    order, curve = list[Head](), []
    for step in range(steps):
        tell(step, steps)
        candidates = sorted(latest, key=lambda head: (latest[head], head))[:CANDIDATES]
        rows = checked(scores([frozenset((*order, head)) for head in candidates], lambda done, total: None))
        latest |= dict(zip(candidates, map(cost, rows), strict=True))
        best = min(range(len(candidates)), key=lambda at: (latest[candidates[at]], candidates[at]))
        order.append(candidates[best])
        curve.append(rows[best])
        del latest[candidates[best]]
    tell(steps, steps)
    return order, np.stack(curve)


def random_orders(
    scores: Scores, order: Sequence[Head], heads: Sequence[Head], count: int, reported: slice, tell: Tell
) -> Float[np.ndarray, "orders steps"]:
    """Mean scores in orders that take as many heads of each layer at each step, drawn at random; at POINTS steps."""
    drawn = np.full((count, len(order)), np.nan)
    points = sorted({round(at) for at in np.linspace(0, len(order) - 1, min(POINTS, len(order)))})
    sets = []
    for seed in range(count):
        random = np.random.Generator(np.random.PCG64(seed))
        pools: dict[int, list[Head]] = {}
        for layer in sorted({layer for layer, _ in heads}):
            mine = [head for head in heads if head[0] == layer]
            pools[layer] = [mine[at] for at in random.permutation(len(mine))]
        other = [pools[layer].pop() for layer, _ in order]
        sets += [frozenset(other[: point + 1]) for point in points]
    if sets:
        drawn[:, points] = checked(scores(sets, tell))[:, reported].mean(-1).reshape(count, len(points))
    return drawn


def named_heads(order: Sequence[Head], heads: Sequence[Head]) -> list[Head]:
    """The heads of an order, each once, or an InputError."""
    named = pairs_of(order, "order")
    wrong = [head for head in named if head not in heads] or [head for head in named if named.count(head) > 1]
    if wrong or not named:
        found = f"head {wrong[0]} is not there, or twice" if wrong else "an order without heads"
        raise InputError(found, where="order", advice="name each head once, as (layer, head)")
    return named


def checked(scores: Float[np.ndarray, "sets texts"]) -> Float[np.ndarray, "sets texts"]:
    """The scores, if they are one number for each of at least one text."""
    if scores.ndim != 2 or not scores.shape[1] or not np.isfinite(scores).all():
        raise InputError(
            f"scores of shape {scores.shape[1:]}, or not all of them finite",
            where="score",
            advice="return one finite number for each text",
        )
    return scores
