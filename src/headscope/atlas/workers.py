"""The workers of a survey: their interface, and the one replica that runs in this process (Ray's are in on_ray.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from headscope.atlas.loading import ModelSource
from headscope.atlas.replica import ModelDescription, Replica, limit_threads
from headscope.atlas.survey_settings import Settings

Task = TypeVar("Task")


class Workers(ABC):
    """One replica in this process, or several on Ray.

    Attributes:
        described: the model as the replicas describe it.
    """

    described: ModelDescription

    @abstractmethod
    def each(self, method: str, tasks: Iterable[Task], *others: Any) -> Iterator[tuple[Task, Any]]:
        """Yield each task with what this method of a replica makes of it, in the order in which they finish.

        Args:
            method: a name of Replica's.
            tasks: its first argument, one by one.
            others: its other arguments.
        """

    def once(self, method: str, task: Any) -> Any:
        """Have one task done: see each."""
        ((_, result),) = self.each(method, [task])
        return result


class LocalWorkers(Workers):
    """One replica in this process; numbers of threads are restored on exit."""

    def __init__(self, source: ModelSource, settings: Settings, *, threads: int | None) -> None:
        self._restore_threads = limit_threads(threads)
        try:
            self._replica = Replica(source, settings)
        except BaseException:
            self.__exit__()
            raise
        self.described = self._replica.described

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        self._restore_threads()

    def each(self, method: str, tasks: Iterable[Task], *others: Any) -> Iterator[tuple[Task, Any]]:
        """See Workers; the order is that of the tasks."""
        for task in tasks:
            yield task, getattr(self._replica, method)(task, *others)
