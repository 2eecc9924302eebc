"""A hub on 127.0.0.1: serves folders as huggingface_hub expects, with ranges and redirects, and counts the bytes."""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

WEIGHTS = (".safetensors", ".bin")


@dataclass
class Request:
    """One request as it came in, and the bytes of the body that answered it."""

    method: str
    path: str
    range: str | None
    served: int


@dataclass
class HubServer:
    """A hub whose repositories are the folders root/owner/name.

    Attributes:
        root: where the repositories lie.
        endpoint: the URL to give as HF_ENDPOINT.
        requests: all requests so far.
        gated: ids that answer as gated models do.
        tags: further names of the one commit that each repository has.
        ignores_ranges: answer ranges with the whole file.
        broken: answer everything with this status.
    """

    root: Path
    endpoint: str = ""
    requests: list[Request] = field(default_factory=list)
    gated: set[str] = field(default_factory=set)
    tags: set[str] = field(default_factory=set)
    ignores_ranges: bool = False
    broken: int | None = None

    @property
    def storage(self) -> str:
        """Where weights are redirected to: another host than the hub's, as its storage is."""
        return self.endpoint.replace("127.0.0.1", "localhost")

    @property
    def served(self) -> int:
        """The bytes of all bodies so far."""
        return sum(request.served for request in self.requests)

    def commit(self, identity: str) -> str:
        """The one commit of a repository."""
        return hashlib.sha1(identity.encode()).hexdigest()

    def environment(self, cache: Path) -> dict[str, str]:
        """The variables that make a subprocess use this hub, and an empty cache of its own."""
        places = {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(cache), "HF_HUB_CACHE": str(cache / "hub")}
        return {**places, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def use(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        """Make huggingface_hub in this process use this hub, and an empty cache of its own."""
        from huggingface_hub import constants

        settings: dict[str, Any] = {"ENDPOINT": self.endpoint, "HF_HUB_CACHE": str(cache / "hub")}
        settings |= {"HUGGINGFACE_CO_URL_TEMPLATE": self.endpoint + "/{repo_id}/resolve/{revision}/{filename}"}
        settings |= {"HF_TOKEN_PATH": str(cache / "token"), "HF_HUB_OFFLINE": False}
        settings |= {"HF_HUB_DISABLE_PROGRESS_BARS": True}
        settings |= {"HF_HUB_DISABLE_XET": True}  # a storage's own protocol, which this hub hasn't
        for name, value in settings.items():
            monkeypatch.setattr(constants, name, value)
        _forget_connections()
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """As HF_HUB_OFFLINE=1 does, for this process."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    _forget_connections()


@contextmanager
def serve(root: Path) -> Iterator[HubServer]:
    """Run a hub over the folders root/owner/name until the block ends."""
    hub = HubServer(root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        _forget_connections()
        server.shutdown()
        server.server_close()
        thread.join()


def _forget_connections() -> None:
    from huggingface_hub.utils import close_session

    close_session()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).lstrip("/")
        if self.hub.broken is not None:
            return self.answer(self.hub.broken, {}, b"out of order")
        if path.startswith("cdn/"):
            return self.content(self.hub.root / path.removeprefix("cdn/"), {})
        if found := re.fullmatch(r"api/models/(.+?)/tree/([^/]+)(?:/.*)?", path):
            return self.listing(found[1], found[2])
        if found := re.fullmatch(r"(.+?)/resolve/([^/]+)/(.+)", path):
            return self.resolve(found[1], found[2], found[3])
        return self.refuse(404, "RepoNotFound", {})

    do_HEAD = do_GET  # noqa: N815 -- the name that BaseHTTPRequestHandler calls

    def resolve(self, identity: str, revision: str, name: str) -> None:
        if not self.known(identity, revision):
            return None
        headers = {"X-Repo-Commit": self.hub.commit(identity)}
        path = self.hub.root / identity / name
        if not path.is_file():
            return self.refuse(404, "EntryNotFound", headers)
        if name.endswith(WEIGHTS):
            size = path.stat().st_size
            headers |= {"X-Linked-Size": str(size), "X-Linked-Etag": self.etag(path)}
            return self.answer(302, headers | {"Location": f"{self.hub.storage}/cdn/{identity}/{name}"}, b"")
        return self.content(path, headers)

    def listing(self, identity: str, revision: str) -> None:
        if self.known(identity, revision):
            root = self.hub.root / identity
            files = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*")) if path.is_file()}
            items = [
                {"type": "file", "path": name, "size": path.stat().st_size, "oid": self.etag(path).strip('"')}
                for name, path in files.items()
            ]
            self.answer(200, {"Content-Type": "application/json"}, json.dumps(items).encode())

    def known(self, identity: str, revision: str) -> bool:
        if identity in self.hub.gated:
            self.refuse(403, "GatedRepo", {})
        elif not (self.hub.root / identity).is_dir():
            self.refuse(401, "RepoNotFound", {})
        elif revision not in {"main", self.hub.commit(identity), *self.hub.tags}:
            self.refuse(404, "RevisionNotFound", {})
        else:
            return True
        return False

    def etag(self, path: Path) -> str:
        status = path.stat()
        return '"' + hashlib.sha1(f"{path}{status.st_size}{status.st_mtime_ns}".encode()).hexdigest() + '"'

    def content(self, path: Path, headers: dict[str, str]) -> None:
        size = path.stat().st_size
        headers = {**headers, "ETag": self.etag(path), "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or self.hub.ignores_ranges:
            return self.answer(200, headers, path, 0, size)
        start, stop = int(wanted[1]), min(int(wanted[2]) + 1 if wanted[2] else size, size)
        if start >= size:
            return self.answer(416, {"Content-Range": f"bytes */{size}"}, b"")
        return self.answer(206, headers | {"Content-Range": f"bytes {start}-{stop - 1}/{size}"}, path, start, stop)

    def refuse(self, status: int, code: str, headers: dict[str, str]) -> None:
        self.answer(status, {**headers, "X-Error-Code": code, "X-Error-Message": code}, b"")

    def answer(
        self, status: int, headers: dict[str, str], body: bytes | Path, start: int = 0, stop: int | None = None
    ) -> None:
        length = (stop or 0) - start if isinstance(body, Path) else len(body)
        # Counted before it is sent: the client may look at the count as soon as it has the last byte.
        request = Request(self.command, self.path, self.headers.get("Range"), length if self.command != "HEAD" else 0)
        self.hub.requests.append(request)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        served = 0
        try:
            self.end_headers()
            if self.command == "GET":
                with io.BytesIO(body) if isinstance(body, bytes) else open(body, "rb") as file:
                    file.seek(start)
                    while served < length:
                        served += self.wfile.write(file.read(min(1 << 20, length - served)))
        except OSError:  # the client has seen enough
            self.close_connection = True
            request.served = served
