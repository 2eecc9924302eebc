"""Hostile config.json files, beside weights that are well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attacks.safetensors_files import Attack
from headscope.errors import ConfigError
from making import write_safetensors


def config(data: bytes) -> Callable[[Path], Any]:
    """A folder with this config.json."""

    def make(folder: Path) -> None:
        write_safetensors(folder / "model.safetensors", {"x": np.ones(2)})
        (folder / "config.json").write_bytes(data)

    return make


CONFIGS: dict[str, Attack] = {
    "empty": (config(b""), ConfigError),
    "not JSON": (config(b"hidden_size: 768"), ConfigError),
    "cut": (config(b'{"hidden_size": 76'), ConfigError),
    "a list": (config(b"[1, 2]"), ConfigError),
    "a number": (config(b"768"), ConfigError),
    "NUL": (config(b'{"a": "\0"}'), ConfigError),
    "only NULs": (config(bytes(100)), ConfigError),
    "not UTF-8": (config(b'{"a": "\xff"}'), ConfigError),
    "UTF-16": (config('{"a": 1}'.encode("utf-16")), ConfigError),
    "nested deeply": (config(b'{"a":' * 99999), ConfigError),
    "number bomb": (config(b'{"a": ' + b"9" * 9000 + b"}"), ConfigError),
    "two answers": (config(b'{"hidden_size": 768, "hidden_size": 1024}'), ConfigError),
}
