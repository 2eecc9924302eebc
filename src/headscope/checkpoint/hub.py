"""Checkpoints on the hub, by way of huggingface_hub: its cache, tokens, endpoint, offline mode. No other file asks it.

A weight file that is in the cache is read there. One that is not is read by range request: a header costs kilobytes,
a slice of a tensor costs its own bytes. Everything is pinned to the commit that the first request resolved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from headscope import __version__
from headscope.checkpoint.formats import PREFERENCE
from headscope.checkpoint.hub_errors import explain, failures
from headscope.checkpoint.place import check_name
from headscope.checkpoint.source import LocalFile, Source, check_span
from headscope.errors import CheckpointError, NotFoundError

FIRST_REQUEST = 64 * 1024
TIMEOUT_SECONDS = 30
RETRIES = 3
COMMIT_HEADER = "X-Repo-Commit"
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
IDENTITY: dict[str, Any] = {"library_name": "headscope", "library_version": __version__}


class Repository:
    """A `Place` on the hub: one model repository, at one commit.

    Attributes:
        where: its id, and after an @ its commit.
    """

    def __init__(self, identity: str, revision: str | None) -> None:
        """Resolve the revision to a commit: by asking the hub, or from the cache where the hub can't be asked.

        Raises:
            NotFoundError: there is no such model or revision, or it can't be reached and is not in the cache.
        """
        self.identity = identity
        self._sources: dict[str, Source | None] = {}
        self._paths: dict[str, Path | None] = {}
        self._unreachable: NotFoundError | None = None
        try:
            commit = self._ask_commit(revision)
        except failures() as error:
            found, final = explain(error, identity, revision)
            cached = None if final else self._cached_commit(revision)
            if cached is None:
                raise found from error
            commit, self._unreachable = cached, found
        self.commit = commit
        self.where = f"{identity}@{commit}"

    def source(self, name: str) -> Source | None:
        if name not in self._sources:
            cached = self._cached(check_name(name), self.commit)
            self._sources[name] = LocalFile(cached, name) if cached is not None else self._remote(name)
        return self._sources[name]

    def path(self, name: str) -> Path | None:
        if name not in self._paths:
            cached = self._cached(check_name(name), self.commit)
            with _without_bar():
                self._paths[name] = cached if cached is not None else self._download(name)
        return self._paths[name]

    def names(self) -> list[str]:
        from huggingface_hub import HfApi

        if self._unreachable is not None:
            raise self._unreachable
        with self._explained():
            return sorted(HfApi(**IDENTITY).list_repo_files(self.identity, revision=self.commit))

    def below(self) -> list[str]:
        return [name for name in self.names() if "/" in name]

    def fetch(self, name: str) -> Source:
        path = self._download(check_name(name))
        if path is None:
            raise self._unreachable or NotFoundError(f"there is no {name}", where=self.where, advice="check the name")
        self._sources[name] = LocalFile(path, name)
        return LocalFile(path, name)

    def _ask_commit(self, revision: str | None) -> str:
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

        url = hf_hub_url(self.identity, "config.json", revision=revision)
        # Asked once before the download, which would try again for half a minute where there is no network.
        with suppress(EntryNotFoundError):
            _commit_of(get_hf_file_metadata(url, **IDENTITY).commit_hash)
        try:
            with _without_bar():
                path = Path(hf_hub_download(self.identity, "config.json", revision=revision, **IDENTITY))
        except EntryNotFoundError as error:  # a model without a config is still a model
            if not isinstance(error, HfHubHTTPError):
                raise
            self._paths["config.json"] = None
            return _commit_of(error.response.headers.get(COMMIT_HEADER))
        self._paths["config.json"] = path
        return path.parent.name

    def _cached_commit(self, revision: str | None) -> str | None:
        paths = (self._cached(name, revision) for name in ("config.json", *PREFERENCE))
        return next((path.parent.name for path in paths if path is not None), None)

    def _cached(self, name: str, revision: str | None) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(self.identity, name, revision=revision)
        return Path(path) if isinstance(path, str) else None

    def _download(self, name: str) -> Path | None:
        """A file, brought into the cache; None where the hub has none of that name, or can't be asked."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError

        if self._unreachable is not None:
            return None
        with self._explained():
            try:
                return Path(hf_hub_download(self.identity, name, revision=self.commit, **IDENTITY))
            except EntryNotFoundError as error:
                if isinstance(error, FileNotFoundError):  # not that it is absent: that it could not be asked for
                    raise
                return None

    def _remote(self, name: str) -> Source | None:
        from huggingface_hub.errors import EntryNotFoundError

        if self._unreachable is not None:
            return None
        with self._explained():
            try:
                head, size = self.get(name, 0, FIRST_REQUEST)
            except EntryNotFoundError:
                return None
        return RemoteFile(self, name, head, size)

    def get(self, name: str, start: int, stop: int) -> tuple[bytes, int]:
        """The bytes of a file from start to stop, or to its end where that comes first; and the file's length."""
        from huggingface_hub import hf_hub_url

        utils = _utilities()
        url = hf_hub_url(self.identity, name, revision=self.commit)
        headers = utils.build_hf_headers(**IDENTITY)
        headers |= {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        options: dict[str, Any] = {"headers": headers, "timeout": TIMEOUT_SECONDS, "max_retries": RETRIES}
        # huggingface_hub speaks through httpx since 1.0, and through requests before.
        stream = getattr(utils, "http_stream_backoff", None) or partial(utils.http_backoff, stream=True)
        with self._explained(keep=True), stream("GET", url, **options) as response:
            if response.status_code == 416 and start == 0:
                return b"", 0
            utils.hf_raise_for_status(response)
            size = _length(response, start, stop, f"{self.where}/{name}")
            pieces = response.iter_bytes() if hasattr(response, "iter_bytes") else response.iter_content(FIRST_REQUEST)
            wanted = min(stop, size) - start
            data = bytearray()
            for piece in pieces:
                data += piece
                if len(data) >= wanted:
                    break
        if len(data) != wanted:
            raise CheckpointError(
                f"bytes {start} to {stop} were asked for, {len(data)} of them came",
                where=f"{self.where}/{name}",
                advice="try again; the connection may have been cut",
            )
        return bytes(data), size

    @contextmanager
    def _explained(self, keep: bool = False) -> Iterator[None]:
        """Turn what goes wrong on the way to the hub into our own error; with keep, a missing file stays as it is."""
        from huggingface_hub.errors import EntryNotFoundError

        try:
            yield
        except failures() as error:
            if keep and isinstance(error, EntryNotFoundError):
                raise
            raise explain(error, self.identity, self.commit)[0] from error


class RemoteFile:
    """A `Source` on the hub: its first bytes are kept, every other read is one range request."""

    remote = True

    def __init__(self, repository: Repository, name: str, head: bytes, size: int) -> None:
        self.name = name
        self.where = f"{repository.where}/{name}"
        self.size = size
        self._repository = repository
        self._head = head

    def read(self, start: int, stop: int) -> bytes:
        check_span(self, start, stop)
        known = self._head[start:stop]
        if len(known) == stop - start:
            return known
        data, size = self._repository.get(self.name, start + len(known), stop)
        if size != self.size:
            raise CheckpointError(
                f"the file had {self.size} bytes before and has {size} now", where=self.where, advice="open it again"
            )
        return known + data

    def view(self, start: int, stop: int) -> memoryview:
        return memoryview(self.read(start, stop))


def _commit_of(header: str | None) -> str:
    if not header:
        raise ConnectionError(f"the answer has no {COMMIT_HEADER}, so this is not a hub")
    return header


def _utilities() -> Any:
    """huggingface_hub.utils, which its versions export in part."""
    from importlib import import_module

    return import_module("huggingface_hub.utils")


def _length(response: Any, start: int, stop: int, where: str) -> int:
    """The whole file's length, from an answer that must be the range asked for, or a whole file no longer than it."""
    found = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if (
        response.status_code == 206
        and found
        and int(found[1]) == start
        and int(found[2]) == min(stop, int(found[3])) - 1
    ):
        return int(found[3])
    length = response.headers.get("Content-Length", "")
    if response.status_code == 200 and start == 0 and length.isdigit() and int(length) <= stop:
        return int(length)
    raise CheckpointError(
        f"a range of bytes was asked for, and the server answers {response.status_code} with another one",
        where=where,
        advice="the endpoint does not serve ranges: download the model, and give its folder",
    )


@contextmanager
def _without_bar() -> Iterator[None]:
    """No progress bar for the small files; left alone where the environment has settled the matter."""
    from huggingface_hub import constants

    utils = _utilities()
    if constants.HF_HUB_DISABLE_PROGRESS_BARS is not None or utils.are_progress_bars_disabled():
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()
