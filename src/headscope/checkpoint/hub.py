"""Checkpoints on the hub. The only file that calls huggingface_hub: its cache, tokens, endpoint and offline mode.

A weight file in the cache is read from there. Otherwise it is read by range requests: a header costs kilobytes, and a
slice of a tensor costs only its own bytes. All requests are pinned to the commit that the first one resolved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from headscope import __version__
from headscope.checkpoint.formats import PREFERENCE
from headscope.checkpoint.raw_files import LocalFile, Source, check_name, check_span
from headscope.errors import CheckpointError, NotFoundError
from headscope.files import is_full

FIRST_REQUEST = 64 * 1024
TIMEOUT_SECONDS = 30
RETRIES = 3
COMMIT_HEADER = "X-Repo-Commit"
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
IDENTITY: dict[str, Any] = {"library_name": "headscope", "library_version": __version__}


class Repository:
    """A `FileTree` on the hub: one model repository, at one commit.

    Attributes:
        where: its id and its commit, joined by an @.
        unreachable: the error of the request that failed, if the commit is the cache's.
    """

    def __init__(self, identity: str, revision: str | None) -> None:
        """Resolve the revision to a commit: on the hub or, if the hub can't be reached, in the cache.

        Raises:
            NotFoundError: there is no such model or revision, or the hub can't be reached and the model isn't cached.
        """
        self.identity = identity
        self._sources: dict[str, Source | None] = {}
        self._paths: dict[str, Path | None] = {}
        self.unreachable: NotFoundError | None = None
        try:
            commit = self._ask_commit(revision)
        except failures() as error:
            explained = explain(error, identity, revision, opening=True)
            names = () if is_final(error) else ("config.json", *PREFERENCE)
            cached = next((path for name in names if (path := self._cached(name, revision)) is not None), None)
            if cached is None:
                raise explained from None  # the chain is the client's own, and the message has its reason
            commit, self.unreachable = cached.parent.name, explained
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

        if self.unreachable is not None:
            raise self.unreachable
        with self._explained():
            return sorted(HfApi(**IDENTITY).list_repo_files(self.identity, revision=self.commit))

    def below(self) -> list[str]:
        return [name for name in self.names() if "/" in name]

    def fetch(self, name: str) -> Source:
        path = self._download(check_name(name))
        if path is None:
            raise self.unreachable or NotFoundError(f"there is no {name}", where=self.where, advice="check the name")
        self._sources[name] = source = LocalFile(path, name)
        return source

    def _ask_commit(self, revision: str | None) -> str:
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

        url = hf_hub_url(self.identity, "config.json", revision=revision)
        # Without a network, the download would retry for half a minute. This request doesn't retry.
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

    def _cached(self, name: str, revision: str | None) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(self.identity, name, revision=revision)
        return Path(path) if isinstance(path, str) else None

    def _download(self, name: str) -> Path | None:
        """Download a file into the cache; None if the repository has no such file or the hub can't be reached."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError

        if self.unreachable is not None:
            return None
        with self._explained():
            try:
                return Path(hf_hub_download(self.identity, name, revision=self.commit, **IDENTITY))
            except EntryNotFoundError as error:
                if isinstance(error, FileNotFoundError):  # LocalEntryNotFoundError: the hub could not be reached
                    raise
                return None

    def _remote(self, name: str) -> Source | None:
        from huggingface_hub.errors import EntryNotFoundError

        if self.unreachable is not None:
            return None
        with self._explained():
            try:
                head, size = self.get(name, 0, FIRST_REQUEST)
            except EntryNotFoundError:
                return None
        return RemoteFile(self, name, head, size)

    def get(self, name: str, start: int, stop: int) -> tuple[bytes, int]:
        """Return the bytes of a file from start to stop (or to its end, if that comes first) and the file's length."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

        url = hf_hub_url(self.identity, name, revision=self.commit)
        headers = build_hf_headers(**IDENTITY)
        headers |= {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        options: dict[str, Any] = {"headers": headers, "timeout": TIMEOUT_SECONDS, "max_retries": RETRIES}
        with self._explained(keep=True), http_stream_backoff("GET", url, **options) as response:
            if response.status_code == 416 and start == 0:
                return b"", 0
            hf_raise_for_status(response)
            size = _length(response, start, stop, f"{self.where}/{name}")
            count = min(stop, size) - start
            data = bytearray()
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) >= count:
                    break
        if len(data) != count:
            raise CheckpointError(
                f"requested bytes {start} to {stop}, received {len(data)} of them",
                where=f"{self.where}/{name}",
                advice="try again; the connection may have been cut",
            )
        return bytes(data), size

    @contextmanager
    def _explained(self, keep: bool = False) -> Iterator[None]:
        """Turn a failed request into one of headscope's errors; with keep, re-raise EntryNotFoundError unchanged."""
        from huggingface_hub.errors import EntryNotFoundError

        try:
            yield
        except failures() as error:
            if keep and isinstance(error, EntryNotFoundError):
                raise
            raise explain(error, self.identity, self.commit) from None


class RemoteFile:
    """A `Source` on the hub: its first bytes are cached; every other read is one range request."""

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
                f"the file had {self.size} bytes when it was opened and has {size} now",
                where=self.where,
                advice="open the checkpoint again",
            )
        return known + data

    def view(self, start: int, stop: int) -> memoryview:
        return memoryview(self.read(start, stop))


def _commit_of(header: str | None) -> str:
    if not header:
        raise ConnectionError(f"the response has no {COMMIT_HEADER}, so this is not a hub")
    return header


def _length(response: Any, start: int, stop: int, where: str) -> int:
    """Return the file's length, after checking that the response is the requested range or a file that ends in it."""
    match = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status_code == 206 and match:
        first, last, length = map(int, match.groups())
        if first == start and last == min(stop, length) - 1:
            return length
    whole = response.headers.get("Content-Length", "")
    if response.status_code == 200 and start == 0 and whole.isdigit() and int(whole) <= stop:
        return int(whole)
    raise CheckpointError(
        f"requested a range of bytes, but the server answered {response.status_code} with other bytes",
        where=where,
        advice="the endpoint doesn't support range requests: download the model and pass its folder",
    )


@contextmanager
def _without_bar() -> Iterator[None]:
    """Hide the progress bars of small files, unless HF_HUB_DISABLE_PROGRESS_BARS is set."""
    from huggingface_hub import constants
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if constants.HF_HUB_DISABLE_PROGRESS_BARS is not None or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


FAMILIAR = (
    "google-bert/bert-base-uncased",
    "google-bert/bert-base-cased",
    "google-bert/bert-large-uncased",
    "google-bert/bert-large-cased",
    "google-bert/bert-base-multilingual-cased",
    "google-bert/bert-base-chinese",
    "FacebookAI/roberta-base",
    "FacebookAI/roberta-large",
    "FacebookAI/xlm-roberta-base",
    "distilbert/distilbert-base-uncased",
    "almanach/camembert-base",
    "google/electra-small-discriminator",
    "google/electra-base-discriminator",
)
"""Well-known ids to suggest for a mistyped one."""


def failures() -> tuple[type[Exception], ...]:
    """Return the exceptions that a request to the hub may raise."""
    from huggingface_hub import errors

    # The HTTP client is httpx in huggingface_hub 1 and httpx2 in 2: take the one whose HTTPError it imports.
    client = import_module(errors.HTTPError.__module__.partition(".")[0])
    return client.HTTPError, client.InvalidURL, OSError, ValueError


def is_final(error: Exception) -> bool:
    """Return True for a request's exception after which a cached copy would be no substitute."""
    from huggingface_hub.errors import HFValidationError, RevisionNotFoundError

    return isinstance(error, (HFValidationError, RevisionNotFoundError)) or is_full(error)


def explain(error: Exception, identity: str, revision: str | None, *, opening: bool = False) -> NotFoundError:
    """Return headscope's error for an exception that a request raised.

    Args:
        error: the exception.
        identity: the repository's id.
        revision: its revision or commit.
        opening: True if the name may have been meant as a path, which was looked for first.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = identity if revision is None else f"{identity}@{revision}"
    no_path = f"there is no file or folder {identity} here, and " if opening else ""
    by_hand = "download the model on a machine with a network, and pass its folder"
    if isinstance(error, HFValidationError):
        found, where, advice = "this is not a hub id", identity, "a hub id is owner/name"
    elif isinstance(error, RevisionNotFoundError):
        found, where = f"the model has no revision {revision}", identity
        advice = "pass a branch, tag or commit of the model, or leave the revision out"
    elif isinstance(error, GatedRepoError):
        found = "the model is gated: its owners control access"
        advice = "request access on the model's page, then log in (`hf auth login`, or HF_TOKEN)"
    elif isinstance(error, RepositoryNotFoundError):
        close = get_close_matches(identity, FAMILIAR, 1, 0.8)
        close = close or [known for known in FAMILIAR if get_close_matches(identity, [known.split("/")[1]], 1, 0.85)]
        suggestion = f"did you mean {close[0]}? " if close else ""
        found = "the hub has no model with this id, and no such path exists"
        advice = f"{suggestion}Check the spelling; if the model is private, log in (`hf auth login`, or HF_TOKEN)"
    elif isinstance(error, OfflineModeIsEnabled):
        found = "no such path exists, the model is not in the cache, and HF_HUB_OFFLINE forbids requests to the hub"
        advice = f"unset HF_HUB_OFFLINE, or {by_hand}"
    elif isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        found, where = f"{no_path}the hub answered {status}", f"{where} on {constants.ENDPOINT}"
        log_in = "log in (`hf auth login`, or HF_TOKEN) with a token that has access to this model"
        advice = log_in if status in (401, 403) else f"try again later, or {by_hand}"
    elif is_full(error):
        found, where = "the disk of the hub's cache is full", constants.HF_HUB_CACHE
        advice = "free some space, or set HF_HOME to a folder on another disk"
    else:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        found, where = f"{no_path}the hub can't be reached ({reason})", f"{where} on {constants.ENDPOINT}"
        advice = f"check the network and HF_ENDPOINT, or {by_hand}"
    return NotFoundError(found, where=where, advice=advice)
