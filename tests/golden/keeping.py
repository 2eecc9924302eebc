"""Results kept as JSON files: text must be equal, numbers only within rounding, whatever the processor.

`pytest --refresh-screens` writes the files of results that differ; look at the diff.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from typer.testing import CliRunner

from headscope.cli import app

KEPT = Path(__file__).parent / "kept"
CLOSE = 2e-5
"""Most that a number may differ, of its size or of 1: fp32 rounds sums of a few hundred products to about 1e-6."""
NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")
FEW = 200
"""Most numbers of an array that is kept whole."""
TABLES = ("labels", "effects", "removal", "syntax", "relations", "distributions", "lines")
"""Of a survey, those that are properties of it."""
CHANGING = {"sha256", "bytes", "seal", "texts"}
"""Fields that are hashes or sizes of files."""


def printed(folder: Path, *words: str) -> str:
    """What a command prints on a terminal of 100 columns. It runs in the folder, so that no path is in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = CliRunner().invoke(app, words, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def keep(request: pytest.FixtureRequest, name: str, value: Any, *, close: float = CLOSE) -> None:
    """Hold a value against the one that is kept under this name.

    Args:
        request: of the test.
        name: of the file.
        value: see `plain`.
        close: most that a number may differ, of its size or of 1; more than CLOSE for numbers that are kept rounded.
    """
    path = KEPT / f"{name}.json"
    new = json.loads(json.dumps(plain(value)))
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    differences = list(differing(new, kept, close))
    if request.config.getoption("--refresh-screens"):
        if differences:
            path.write_text(spelled(new) + "\n", encoding="utf-8", newline="\n")
        return
    assert not differences, f"{path.name}: " + "\n".join(differences[:20])


def differing(new: Any, kept: Any, close: float, place: str = "") -> Iterator[str]:
    """A line for each difference."""
    if isinstance(new, dict) and isinstance(kept, dict):
        for name in {**kept, **new}:
            if name in new and name in kept:
                yield from differing(new[name], kept[name], close, f"{place}.{name}")
            else:
                yield f"{place}.{name} is {'new' if name in new else 'gone'}"
        if list(new) != list(kept) and set(new) == set(kept):
            yield f"{place}: the order is {', '.join(new)}"
    elif isinstance(new, list) and isinstance(kept, list):
        if len(new) != len(kept):
            yield f"{place} has {len(new)} items, had {len(kept)}"
        for at, (one, other) in enumerate(zip(new, kept, strict=False)):
            yield from differing(one, other, close, f"{place}[{at}]")
    elif not same(new, kept, close):
        yield f"{place} is {new!r}, was {kept!r}"


def same(new: Any, kept: Any, close: float) -> bool:
    """Return True if two values are equal, numbers that are not whole within rounding, also in texts."""
    if type(new) is not type(kept):
        return False
    if isinstance(new, float):
        return new == kept or math.isclose(new, kept, rel_tol=close, abs_tol=close)
    if not isinstance(new, str) or new == kept:
        return bool(new == kept)
    numbers = list(zip(NUMBER.findall(new), NUMBER.findall(kept), strict=False))
    digits = [10.0 ** -len(one.partition("e")[0].partition(".")[2]) for one, _ in numbers]
    return NUMBER.sub("#", new) == NUMBER.sub("#", kept) and all(
        math.isclose(float(one), float(other), rel_tol=close, abs_tol=max(close, 1.01 * digit * ("e" not in one)))
        for (one, other), digit in zip(numbers, digits, strict=True)
    )


def plain(value: Any) -> Any:
    """A value as JSON keeps it: screens by line, tables by column, numbers with seven digits."""
    if isinstance(value, str):
        return value.split("\n") if "\n" in value else value
    if isinstance(value, bool | int | None):
        return value
    if isinstance(value, float | np.floating):
        return float(f"{value:.7g}") if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain_array(np.asarray(value))
    if hasattr(value, "dims") and hasattr(value, "array"):
        return {"dims": plain(value.dims), **plain_array(value.array)}
    if isinstance(value, pyarrow.Table):
        schema = {field.name: str(field.type) for field in value.schema}
        return {"schema": schema, "columns": plain(value.to_pydict())}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    return repr(value)


def plain_array(array: np.ndarray) -> Any:
    """An array: its shape and dtype, and its numbers; of a large one some of them, and sums that depend on all."""
    about = {"shape": list(array.shape), "dtype": str(array.dtype)}
    if array.size <= FEW:
        return {**about, "values": plain(array.tolist())}
    flat, finite = array.reshape(-1), np.isfinite(array).reshape(-1)
    known = np.where(finite, flat, 0).astype(np.float64)
    mixed = float(known @ np.cos(np.arange(flat.size))) / flat.size
    cells = flat[:: (flat.size // 20) | 1].tolist()
    return {
        **about,
        "finite": int(finite.sum()),
        "mean": plain(float(known.mean())),
        "mixed": plain(mixed),
        "cells": plain(cells),
    }


def spelled(value: Any, indent: str = "") -> str:
    """JSON with one line for each item that holds no other."""
    deeper = f"{indent} "
    if isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
        items = [f"{deeper}{json.dumps(name)}: {spelled(item, deeper)}" for name, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    nested = isinstance(value, list) and any(isinstance(item, dict | list) for item in value)
    texts = isinstance(value, list) and len(value) > 1 and all(isinstance(item, str) and " " in item for item in value)
    if nested or texts:
        return "[\n" + ",\n".join(f"{deeper}{spelled(item, deeper)}" for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


def steady(value: Any) -> Any:
    """A record without hashes and sizes of files, and only the names of software whose versions it has."""
    if isinstance(value, dict):
        return {
            name: list(dict(item)) if name == "versions" else steady(item)
            for name, item in value.items()
            if name not in CHANGING
        }
    return [steady(item) for item in value] if isinstance(value, list) else value


def page_data(path: Path) -> dict[str, Any]:
    """The JSON in a page of the site, by the ids of its elements."""
    elements = re.findall(r'<script type="application/json" id="([\w-]+)">(.*?)</script>', path.read_text("utf-8"))
    assert elements
    return {name: json.loads(text) for name, text in elements}
