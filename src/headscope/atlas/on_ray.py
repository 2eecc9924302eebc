"""A survey's work on Ray: actors with one replica each, on this machine or on a cluster.

Actors rather than Ray Data: this process reads the corpus (which may be standard input) part by part, and it alone
writes the results. So no other machine needs the corpus or the folder, and at most two parts per actor are in memory.
Ray restarts an actor that dies and runs its part again; a part is a pure function of its texts, so nothing is lost or
counted twice.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import ray

from headscope.atlas.corpus_effects import Batch, EffectWindow
from headscope.atlas.documents import CorpusPart, Document, Done
from headscope.atlas.head_distance_windows import ChosenWindow
from headscope.atlas.lines import Read, Reading
from headscope.atlas.loading import ModelSource
from headscope.atlas.replica import ModelDescription, Replica, limit_threads
from headscope.atlas.survey_settings import Settings
from headscope.atlas.writes import WriteBatch
from headscope.errors import HeadscopeError, InputError, first_line

TRIES = 3
"""Retries of a part whose actor died. Limited, because a part may kill every actor."""

PAUSE = 1.0
"""Seconds before an actor that is gone is asked again."""

IN_HAND = 2
"""Parts per actor: one running, one waiting."""

Task = TypeVar("Task")


class Worker:
    """An actor. The model is loaded on the first call, so that a failure comes back as that call's error.

    `lent` is a list with the reference to the model's source. Every call passes it, because a restarted actor has
    nothing but its constructor's arguments.
    """

    def __init__(self, settings: Settings, threads: int) -> None:
        self._settings = settings
        self._threads = threads
        self._replica: Replica | None = None

    def _ready(self, lent: list[Any]) -> Replica:
        if self._replica is None:
            limit_threads(self._threads)
            self._replica = Replica(ray.get(lent[0]), self._settings)
        return self._replica

    def describe(self, lent: list[Any]) -> ModelDescription:
        """The model as the replica describes it."""
        return self._ready(lent).described

    def run(
        self, lent: list[Any], part: CorpusPart, stamp: dict[str, Any]
    ) -> tuple[bytes, dict[str, Any], dict[str, bytes]]:
        """See Replica.run."""
        return self._ready(lent).run(part, stamp)

    def compare(self, lent: list[Any], document: Document, number: int) -> np.ndarray:
        """See Replica.compare."""
        return self._ready(lent).compare(document, number)

    def cut(self, lent: list[Any], document: Document, places: tuple[ChosenWindow, ...]) -> list[EffectWindow]:
        """See Replica.cut."""
        return self._ready(lent).cut(document, places)

    def effects(self, lent: list[Any], batch: Batch) -> np.ndarray:
        """See Replica.effects."""
        return self._ready(lent).effects(batch)

    def writes(self, lent: list[Any], batch: WriteBatch) -> np.ndarray:
        """See Replica.writes."""
        return self._ready(lent).writes(batch)

    def tokens(self, lent: list[Any], ids: Sequence[int]) -> list[str]:
        """See Replica.tokens."""
        return self._ready(lent).tokens(ids)

    def read(self, lent: list[Any], reading: Reading) -> Read:
        """See Replica.read."""
        return self._ready(lent).read(reading)

    def vectors(self, lent: list[Any], ids: Sequence[int]) -> np.ndarray:
        """See Replica.vectors."""
        return self._ready(lent).vectors(ids)

    def process(self) -> int:
        """The actor's process id."""
        return os.getpid()


class RayWorkers:
    """Actors on a Ray that is running already, or on one that is started here and stopped at the end.

    Args:
        address: of a cluster; by default the one that the environment names, otherwise this machine.
    """

    def __init__(
        self, source: ModelSource, settings: Settings, *, threads: int | None, workers: int | None, address: str | None
    ) -> None:
        self._started_ray = not ray.is_initialized()
        if self._started_ray:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise InputError(
                    f"could not connect to Ray: {first_line(error)}",
                    where=f"address {address!r}",
                    advice="give the address of a running cluster, or omit it to start Ray on this machine",
                ) from error
        try:
            self.actors = self._start(settings, threads, workers)
            self._lent = [ray.put(source)]
            ((_, described),) = self._each(iter([0]), lambda actor, _: actor.describe.remote(self._lent))
            self._described: ModelDescription = described
        except BaseException:
            self.__exit__()
            raise

    def _start(self, settings: Settings, threads: int | None, workers: int | None) -> list[Any]:
        cpus = 1 if threads is None else threads
        gpus = 1 if settings.device.startswith("cuda") else 0
        resources = ray.cluster_resources()
        most = int(min(resources.get("CPU", 0) // cpus, resources.get("GPU", 0) if gpus else float("inf")))
        count = max(most, 1) if workers is None else workers
        if not 1 <= count <= most:
            raise InputError(
                f"{count} workers of {cpus} CPUs" + (" and a GPU" if gpus else "") + f" each don't fit; {most} do",
                where="workers",
                advice="use fewer workers, or fewer threads per worker",
            )
        actor = ray.remote(Worker).options(num_cpus=cpus, num_gpus=gpus, max_restarts=-1)
        return [actor.remote(settings, cpus) for _ in range(count)]

    def __enter__(self) -> RayWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        if self._started_ray:
            ray.shutdown()
            return
        for actor in getattr(self, "actors", ()):
            ray.kill(actor)

    @property
    def described(self) -> ModelDescription:
        """The model as the first actor describes it."""
        return self._described

    def run(self, todo: Iterator[CorpusPart], stamp: dict[str, Any]) -> Iterator[Done]:
        """See Workers."""
        for part, done in self._each(todo, lambda actor, part: actor.run.remote(self._lent, part, stamp)):
            yield part, *done

    def compare(self, todo: Iterator[tuple[ChosenWindow, Document]]) -> Iterator[tuple[ChosenWindow, np.ndarray]]:
        """See Workers."""

        def submit(actor: Any, task: tuple[ChosenWindow, Document]) -> Any:
            return actor.compare.remote(self._lent, task[1], task[0].window)

        for (window, _), matrix in self._each(todo, submit):
            yield window, matrix

    def cut(self, todo: Iterator[tuple[tuple[ChosenWindow, ...], Document]]) -> Iterator[EffectWindow]:
        """See Workers."""
        for _, windows in self._each(todo, lambda actor, task: actor.cut.remote(self._lent, task[1], task[0])):
            yield from windows

    def effects(self, todo: Iterator[Batch]) -> Iterator[tuple[Batch, np.ndarray]]:
        """See Workers."""
        return self._each(todo, lambda actor, batch: actor.effects.remote(self._lent, batch))

    def writes(self, todo: Iterator[WriteBatch]) -> Iterator[tuple[WriteBatch, np.ndarray]]:
        """See Workers."""
        return self._each(todo, lambda actor, batch: actor.writes.remote(self._lent, batch))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """See Workers."""
        ((_, tokens),) = self._each(iter([ids]), lambda actor, ids: actor.tokens.remote(self._lent, ids))
        names: list[str] = tokens
        return names

    def read(self, todo: Iterator[Reading]) -> Iterator[tuple[Reading, Read]]:
        """See Workers."""
        yield from self._each(todo, lambda actor, reading: actor.read.remote(self._lent, reading))

    def vectors(self, ids: Sequence[int]) -> np.ndarray:
        """See Workers."""
        ((_, vectors),) = self._each(iter([ids]), lambda actor, ids: actor.vectors.remote(self._lent, ids))
        numbers: np.ndarray = vectors
        return numbers

    def _each(self, todo: Iterator[Task], submit: Callable[[Any, Task], Any]) -> Iterator[tuple[Task, Any]]:
        """Yield every task with its result, with at most IN_HAND tasks per actor.

        A task whose actor is gone goes to the next that is free. That actor gets none until it answers again: when a
        node goes down, Ray says for a while that its actors are unavailable, before it restarts them on another.

        Raises:
            InputError: the same task was lost TRIES + 1 times.
        """
        free = deque(actor for _ in range(IN_HAND) for actor in self.actors)
        running: dict[Any, tuple[Task | None, Any]] = {}
        lost: deque[Task] = deque()
        losses: Counter[int] = Counter()
        any_left = True
        while any_left or lost or any(task is not None for task, _ in running.values()):
            while free and (lost or any_left):
                task = lost.popleft() if lost else next(todo, None)
                if task is None:
                    any_left = False
                    break
                actor = free.popleft()
                running[submit(actor, task)] = (task, actor)
            if not running:
                continue
            (ready,), _ = ray.wait(list(running), num_returns=1)
            done, actor = running.pop(ready)
            try:
                result = self._result(ready)
            except ray.exceptions.RayActorError as error:
                if done is not None:
                    losses[id(done)] += 1
                    if losses[id(done)] > TRIES:
                        raise _died(error) from error
                    lost.append(done)
                time.sleep(PAUSE)
                running[actor.process.remote()] = (None, actor)
                continue
            free.append(actor)
            if done is not None:
                losses.pop(id(done), None)
                yield done, result

    @staticmethod
    def _result(ref: Any) -> Any:
        """A result, or the error that the actor raised."""
        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, HeadscopeError):
                raise error.cause from error
            raise


def _died(error: Exception) -> InputError:
    return InputError(
        f"a worker died {TRIES + 1} times on the same part: {first_line(error)}",
        where="Ray",
        advice="it may be out of memory: try a smaller --batch-tokens or --part-size, or fewer workers; "
        "finished parts are kept",
    )
