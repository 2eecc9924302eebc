"""What the manifest says of the parts, read from the parts themselves: counts, refusals, hashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headscope.errors import InputError
from headscope.survey.folder import MOST_REFUSED, Folder
from headscope.survey.table import part_record

SUMMED = ("documents", "windows", "tokens")


def record_of(path: Path) -> dict[str, Any]:
    """The record of a part that is done.

    Raises:
        InputError: it isn't there any more.
    """
    record = part_record(path)
    if record is None:
        raise InputError(
            "a part that was done is gone or damaged",
            where=str(path),
            advice="run the same command again: it is made anew",
        )
    return record


def counts_of(paths: Sequence[Path]) -> tuple[dict[str, int], dict[str, Any]]:
    """Counts over all parts; refused documents by reason, and the first of them by name."""
    counts = dict.fromkeys(("documents", "refused", "windows", "tokens"), 0)
    reasons: Counter[str] = Counter()
    documents: list[dict[str, Any]] = []
    for path in paths:
        record = record_of(path)
        for name in SUMMED:
            counts[name] += record[name]
        counts["refused"] += len(record["refused"])
        reasons.update(one["reason"] for one in record["refused"])
        documents += record["refused"][: MOST_REFUSED - len(documents)]
    return counts, {"reasons": dict(sorted(reasons.items())), "documents": documents}


def manifest_parts(folder: Folder, paths: Sequence[Path]) -> list[dict[str, Any]]:
    """For each part its name, size, hash and counts."""
    found = []
    for path in paths:
        record = record_of(path)
        name = f"parts/{path.name}"
        found.append(
            {
                "name": name,
                **folder.file_record(name),
                "documents": record["documents"],
                "refused": len(record["refused"]),
                "windows": record["windows"],
                "tokens": record["tokens"],
                "texts": record["texts"],
            }
        )
    return found
