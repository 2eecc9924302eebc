"""Scores of a live model with heads silenced: `hs.effects(model, score)` and `hs.removal(model, score)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.patterns import pairs_of
from headscope.errors import InputError
from headscope.heads import scored
from headscope.live.ablation import Ablation, ablate
from headscope.live.hooks import drawing, drawn_next
from headscope.progress_bar import told
from headscope.results.head_values import Head, HeadValues, Measure
from headscope.settings import named

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import nn

    from headscope.results.effect_records import Removal


class LiveScores:
    """Computes `headscope.heads.scored.Scores` by running a live model anew for each set of heads.

    Attributes:
        heads: those that were named, or all of the stack.
        every: all of the stack; none where its modules don't say how many they have.
        measure: what the score is; it has the function's name.
        method: as in hs.ablate.
    """

    def __init__(
        self, model: nn.Module, score: Callable[[], Any], heads: Iterable[Head] | None, method: str, stack: str | None
    ) -> None:
        ablation = Ablation(model, stack, {})
        model = ablation.model
        if model.training:
            raise InputError(
                "the model is in training mode, in which its scores differ from run to run",
                where=type(model).__name__,
                advice="call model.eval() first",
            )
        if not callable(score):
            found = f"the score is {type(score).__name__}, not a function"
            advice = "pass a function that runs the model and returns one number for each text; of a text itself: "
            raise InputError(found, where="score", advice=f"{advice}hs.open(model, tokenizer=tokenizer).effects(text)")
        self._model, self._score, self.method, self._stack = model, score, method, ablation.stack
        try:
            self.every: Sequence[Head] = ablation.every_head()
        except InputError:
            if heads is None:
                raise
            self.every = []
        self.heads: Sequence[Head] = self.every if heads is None else [*dict.fromkeys(pairs_of(heads, "heads"))]
        if not self.heads:
            raise InputError("no head is named", where="heads", advice="give (layer, head) of some, or leave it out")
        self.measure = Measure.of_score(score)
        self._drawn = drawn_next(model)

    def __call__(self, sets: Sequence[frozenset[Head]], tell: scored.Tell) -> Float[np.ndarray, "sets texts"]:
        import torch

        rows = []
        for done, heads in enumerate(sets):
            tell(done, len(sets))
            ways = dict.fromkeys(heads, self.method)
            silenced = ablate(self._model, ways, stack=self._stack) if ways else nullcontext()
            with silenced, torch.no_grad(), drawing(self._drawn):
                given = self._score()
            try:
                given = np.array(given) if hasattr(given, "to_numpy") else given  # a column of pandas
                found = given if isinstance(given, torch.Tensor) else torch.as_tensor(given, device="cpu")
                rows.append(found.detach().to("cpu", torch.float64).numpy())
            except (TypeError, ValueError, RuntimeError) as error:
                raise InputError(
                    f"the score is {given!r:.60}, which isn't one number for each text",
                    where="score",
                    advice="return a list, an array or a tensor of numbers",
                ) from error
            if rows[-1].ndim != 1 or rows[-1].shape != rows[0].shape:
                raise InputError(
                    f"a score of shape {rows[-1].shape}, the first was {rows[0].shape}",
                    where="score",
                    advice="return one number for each text, and as many each time",
                )
        tell(len(sets), len(sets))
        return np.stack(rows)


@named
def effects(
    model: nn.Module,
    score: Callable[[], Any],
    *,
    heads: Iterable[Head] | None = None,
    method: str = "zero",
    stack: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> HeadValues:
    """Silence each head of a live model, and tell how the mean of a score changes.

        def right():
            return [model(**text).logits.argmax(-1).item() == label for text, label in texts]
        hs.effects(model, right)           # (layers, heads), below 0 where the score rests on the head

    One run of `score` for each head, and one without change. For a checkpoint that hs.open reads, model.effects(texts,
    labels=…) does the same without running the layers before the head again.

    Args:
        model: a live model or a pipeline, as in hs.capture, in eval mode.
        score: runs the model over your texts, in batches as you like, and returns one number for each text: a list, an
            array or a tensor. PyTorch draws the same random numbers in each run.
        heads: only these, (layer, head) counted from 0.
        method: as in hs.ablate.
        stack: as in hs.ablate.
        progress: called with the runs done and all runs. By default a bar in notebooks, and lines of the log.

    Returns:
        The mean change over texts, (layers, heads), with its 95 % interval (Student's t) in `low` and `high`; NaN for
        heads that were not named. Its name is the function's.

    Raises:
        InputError: a head or stack doesn't exist, the model is in training mode, or the score is not one finite number
            for each text.
        UnsupportedError: the model's attention can't be captured.
    """
    scores = LiveScores(model, score, heads, method, stack)
    with told(progress, "runs") as tell:
        return scored.change_of_each(scores, tell)


@named
def removal(
    model: nn.Module,
    score: Callable[[], Any],
    *,
    order: str | Sequence[Head] = "rank",
    less_is_better: bool = False,
    random: int = 5,
    steps: int | None = None,
    method: str = "zero",
    stack: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Removal:
    """Silence heads of a live model one after the other, and read a score after each: the curve of removal.

    Arguments as for hs.effects, and:

    Args:
        model: a live model.
        score: one number for each text. An order that is chosen is chosen on the first, third, … text and reported on
            the others.
        order: `rank`: the head first whose loss alone costs least; `greedy`: at each step the head that costs least
            then, of the 8 that cost least when they were last measured; or heads of your own.
        less_is_better: True if the score is a loss.
        random: curves with heads drawn at random beside it: at each step as many of each layer, at 16 steps.
        steps: how many heads go; by default all.
        method: as in hs.ablate.
        stack: as in hs.ablate.
        progress: called with the runs done and all runs, in each of the rounds.

    Raises:
        InputError: as for hs.effects; or fewer than four texts for an order that is chosen.
        UnsupportedError: the model's attention can't be captured.
    """
    scores = LiveScores(model, score, None, method, stack)
    with told(progress, "runs") as tell:
        return scored.removal(scores, order=order, less_is_better=less_is_better, random=random, steps=steps, tell=tell)
