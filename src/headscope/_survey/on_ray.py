"""The work done on Ray: actors with a replica each, on one machine or on a cluster.

Actors and not Ray Data: parts come one after the other from this process's reader (standard input too), and go back to
this process, which alone writes. So no machine but this one needs the corpus or the folder, and no more than two parts
per actor are in memory. An actor that dies is started again by Ray, and its part is run again: parts are pure functions
of their texts, so nothing is lost or counted twice.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import ray

from headscope._survey.documents import Document, Done, Part
from headscope._survey.likeness import Chosen
from headscope._survey.loading import Source
from headscope._survey.replica import Described, Replica
from headscope._survey.settings import Settings
from headscope.errors import HeadscopeError, InputError, first_line

TRIES = 3
"""How often a part is run again when its actor died: a part that kills every actor must not go on for ever."""

IN_HAND = 2
"""Parts per actor: one that runs, and one that waits."""

Task = TypeVar("Task")


class Worker:
    """An actor. Its model is loaded when it is first needed, so that what is wrong with it comes back as an error.

    `lent` is a list with the reference to the model's source: it comes with every call, as an actor that was started
    again must not depend on what the first one was given.
    """

    def __init__(self, settings: Settings, threads: int) -> None:
        self._settings = settings
        self._threads = threads
        self._replica: Replica | None = None

    def _ready(self, lent: list[Any]) -> Replica:
        if self._replica is None:
            self._replica = Replica(ray.get(lent[0]), self._settings, self._threads)
        return self._replica

    def describe(self, lent: list[Any]) -> Described:
        """What the replica knows of the model."""
        return self._ready(lent).described

    def run(self, lent: list[Any], part: Part, stamp: dict[str, Any]) -> tuple[bytes, dict[str, Any], dict[str, bytes]]:
        """See Replica.run."""
        return self._ready(lent).run(part, stamp)

    def compare(self, lent: list[Any], document: Document, number: int) -> np.ndarray:
        """See Replica.compare."""
        return self._ready(lent).compare(document, number)

    def process(self) -> int:
        """The number of the process it is in."""
        return os.getpid()


class RayWorkers:
    """Actors on a Ray that runs already, or on one that is started here and stopped at the end.

    Args:
        address: of a cluster; without one, that of the environment, or else this machine.
    """

    def __init__(
        self, source: Source, settings: Settings, *, threads: int | None, workers: int | None, address: str | None
    ) -> None:
        self._began = not ray.is_initialized()
        if self._began:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise InputError(
                    f"there is no Ray: {first_line(error)}",
                    where=f"address {address!r}",
                    advice="give the address of a running cluster, or leave it out",
                ) from error
        try:
            self.actors = self._start(settings, threads, workers)
            self._lent = [ray.put(source)]
            self._described: Described = self._got(self.actors[0].describe.remote(self._lent))
        except BaseException:
            self.__exit__()
            raise

    def _start(self, settings: Settings, threads: int | None, workers: int | None) -> list[Any]:
        cpus = 1 if threads is None else threads
        gpus = 1 if settings.device.startswith("cuda") else 0
        there = ray.cluster_resources()  # type: ignore[no-untyped-call]
        most = int(min(there.get("CPU", 0) // cpus, there.get("GPU", 0) if gpus else float("inf")))
        count = max(most, 1) if workers is None else workers
        if not 1 <= count <= most:
            raise InputError(
                f"{count} workers of {cpus} CPUs" + (" and a GPU" if gpus else "") + f" each don't fit: {most} would",
                where="workers",
                advice="ask for fewer, or for fewer threads each",
            )
        actor = ray.remote(Worker).options(num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=TRIES)
        return [actor.remote(settings, cpus) for _ in range(count)]

    def __enter__(self) -> RayWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        if self._began:
            ray.shutdown()
            return
        for actor in getattr(self, "actors", ()):
            ray.kill(actor)

    @property
    def described(self) -> Described:
        """What they know of the model."""
        return self._described

    def run(self, todo: Iterator[Part], stamp: dict[str, Any]) -> Iterator[Done]:
        """In the order in which they are done."""
        for part, done in self._each(todo, lambda actor, part: actor.run.remote(self._lent, part, stamp)):
            yield part, *done

    def compare(self, todo: Iterator[tuple[Chosen, Document]]) -> Iterator[tuple[Chosen, np.ndarray]]:
        """In the order in which they are done."""

        def hand(actor: Any, task: tuple[Chosen, Document]) -> Any:
            return actor.compare.remote(self._lent, task[1], task[0].window)

        for (chosen, _), matrix in self._each(todo, hand):
            yield chosen, matrix

    def _each(self, todo: Iterator[Task], hand: Callable[[Any, Task], Any]) -> Iterator[tuple[Task, Any]]:
        """Every task with its result, at most IN_HAND of them with each actor."""
        free = deque(actor for _ in range(IN_HAND) for actor in self.actors)
        out: dict[Any, tuple[Task, Any]] = {}
        more = True
        while more or out:
            while free and more:
                task = next(todo, None)
                if task is None:
                    more = False
                    break
                actor = free.popleft()
                out[hand(actor, task)] = (task, actor)
            if not out:
                break
            (ready,), _ = ray.wait(list(out), num_returns=1)
            task, actor = out.pop(ready)
            free.append(actor)
            yield task, self._got(ready)

    @staticmethod
    def _got(ref: Any) -> Any:
        """A result; what went wrong in the actor as the error that it was there."""
        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, HeadscopeError):
                raise error.cause from error
            raise
        except ray.exceptions.RayActorError as error:
            raise InputError(
                f"a worker died {TRIES + 1} times over the same part: {first_line(error)}",
                where="Ray",
                advice="it may lack memory: take smaller --batch-tokens or --part-size, or fewer workers; "
                "finished parts are kept",
            ) from error
