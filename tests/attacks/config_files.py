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
    "empty": (config(b""), ConfigError, "not JSON"),
    "not JSON": (config(b"hidden_size: 768"), ConfigError, "not JSON"),
    "cut": (config(b'{"hidden_size": 76'), ConfigError, "not JSON"),
    "a list": (config(b"[1, 2]"), ConfigError, "expected an object"),
    "a number": (config(b"768"), ConfigError, "expected an object"),
    "NUL": (config(b'{"a": "\0"}'), ConfigError, "not JSON"),
    "only NULs": (config(bytes(100)), ConfigError, "not JSON"),
    "not UTF-8": (config(b'{"a": "\xff"}'), ConfigError, "byte 7 is not UTF-8"),
    "UTF-16": (config('{"a": 1}'.encode("utf-16")), ConfigError, "byte 0 is not UTF-8"),
    "nested deeply": (config(b'{"a":' * 99999), ConfigError, "nested too deeply"),
    "number bomb": (config(b'{"a": ' + b"9" * 9000 + b"}"), ConfigError, "an integer of 9000 digits"),
    "two answers": (
        config(b'{"hidden_size": 768, "hidden_size": 1024}'),
        ConfigError,
        "the name 'hidden_size' occurs twice",
    ),
}
