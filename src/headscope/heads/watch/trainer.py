"""`hs.HeadscopeCallback(texts, every=500)`: what heads become, in the logs of transformers' Trainer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from headscope.errors import UnsupportedError
from headscope.files import make_folder
from headscope.heads.kinds import MEASURES
from headscope.heads.watch.watching import Watch, watch

PREFIX = "headscope"
FILE = "heads.parquet"


class HeadscopeCallback(TrainerCallback):
    """Measures every head at some steps of a Trainer's run, and logs what it finds through the Trainer.

    `Trainer(…, callbacks=[hs.HeadscopeCallback(texts, every=500)])`. TensorBoard, W&B, Trackio and whatever else the
    Trainer reports to get, at each measured step, `headscope/layer_3/previous` (the mean over the layer's heads) for
    each layer and statistic, and `headscope/heads/previous` (the number of heads of that pattern). The full table is a
    Parquet file: a row per step, layer and head. Training is the same as without, bit by bit. See docs/training.md.

    Attributes:
        watch: the running or last watch: `callback.watch.plot("heads.svg")`; None before training.

    Raises:
        MissingExtraError: transformers or pyarrow is not installed.
    """

    def __init__(
        self,
        texts: Sequence[str],
        *,
        every: int = 500,
        tokenizer: Any = None,
        out: str | os.PathLike[str] | None = None,
        statistics: str | Iterable[str] | None = None,
        length: int | None = None,
    ) -> None:
        """Prepare a callback; the model is seen when training begins.

        Args:
            texts: a few texts, the same at every step.
            every: the number of steps between two measurements; the first and the last step are measured too.
            tokenizer: the model's tokenizer; by default the Trainer's processing_class.
            out: the Parquet file; by default heads.parquet in the Trainer's output folder.
            statistics: names; by default all that follow from weights.
            length: tokens of a window; by default 512, or what the model takes.
        """
        self.watch: Watch | None = None
        self._texts = texts
        self._every = every
        self._tokenizer = tokenizer
        self._out = out
        self._options: dict[str, Any] = {"statistics": statistics, "length": length}
        self._first = _First(self)
        self._handler: CallbackHandler | None = None
        self._waiting: tuple[int, dict[str, float]] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin to watch, and measure the model as it is."""
        if not state.is_world_process_zero:
            return
        out = Path(args.output_dir or ".") / FILE if self._out is None else Path(self._out)
        make_folder(out.parent)
        tokenizer = self._tokenizer or kwargs.get("processing_class")
        self.watch = watch(
            kwargs["model"], self._texts, tokenizer=tokenizer, every=self._every, out=out, **self._options
        )
        self._leave()
        self._handler = _calling_handler()
        # A new list: the handler is going through the old one at this moment.
        self._handler.callbacks = [self._first, *self._handler.callbacks]
        self.watch.__enter__()
        if state.global_step:
            self.watch.resume(state.global_step)
        if state.global_step not in self.watch.steps:
            self.watch.measure(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Measure every so many steps and at the last one; then let the Trainer log."""
        if self.watch is None:
            return
        measured = self.watch.step(state.global_step)
        if not measured and state.global_step >= state.max_steps:
            self.watch.measure(state.global_step)
            measured = True
        if measured:
            self._waiting = (state.global_step, logs_of(self.watch))
            control.should_log = True

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Take the numbers out of the logs again, behind the trackers: the progress bar prints every one of them."""
        for name in [name for name in kwargs.get("logs") or () if name.startswith(f"{PREFIX}/")]:
            del kwargs["logs"][name]

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop watching; the table and the pictures can still be read."""
        if self.watch is not None:
            self.watch.__exit__(None, None, None)
            self._leave()

    def hand_over(self, state: TrainerState, logs: dict[str, Any] | None) -> None:
        """Add what was measured to a log that is about to reach the trackers, and to the Trainer's own history."""
        if logs is None or self._waiting is None:
            return
        step, numbers = self._waiting
        self._waiting = None
        if step == state.global_step:
            logs.update(numbers)
            state.log_history[-1].update(numbers)

    def _leave(self) -> None:
        if self._handler is not None:
            self._handler.callbacks = [callback for callback in self._handler.callbacks if callback is not self._first]


class _First(TrainerCallback):
    """Stands before the trackers, which come before every callback that a person passes to a Trainer."""

    def __init__(self, behind: HeadscopeCallback) -> None:
        self._behind = behind

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._behind.hand_over(state, kwargs.get("logs"))


def logs_of(watch: Watch) -> dict[str, float]:
    """The last step in a few numbers: each statistic's mean by layer, heads by pattern, the share of the time.

    Statistics that the texts don't have (`other_sentence` without pairs) are left out.
    """
    logs: dict[str, float] = {}
    layers = sorted({layer for layer, _ in watch.heads})
    for name in watch.statistics:
        for row, layer in enumerate(layers):
            seen = watch[name].array[-1, row]
            seen = seen[np.isfinite(seen)]
            if len(seen):
                logs[f"{PREFIX}/layer_{layer}/{name}"] = float(seen.mean())
    if set(MEASURES) <= set(watch.statistics):
        logs |= {f"{PREFIX}/heads/{name}": count for name, count in watch.patterns()[-1].items()}
    return {**logs, f"{PREFIX}/share_of_time": watch.share}


def _calling_handler() -> CallbackHandler:
    """The Trainer's handler of callbacks, which is calling us at this moment.

    A Trainer tells its callbacks everything but who else listens, and a log has reached the trackers before it reaches
    a callback that a person passed. So the handler is looked up among the callers.

    Raises:
        UnsupportedError: no handler is among them.
    """
    frame = sys._getframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, CallbackHandler):
            return caller
        frame = frame.f_back  # type: ignore[assignment]
    raise UnsupportedError(
        "no CallbackHandler of transformers called this",
        where="HeadscopeCallback.on_train_begin",
        advice="pass the callback to transformers.Trainer; in a loop of your own, use hs.watch",
    )
