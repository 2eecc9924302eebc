"""What the manifest says of the parts, read from the parts themselves: counts, refusals, hashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from headscope._survey.folder import MOST_REFUSED, Folder
from headscope._survey.table import part_record
from headscope.errors import InputError

COUNTS = ("documents", "refused", "windows", "tokens")
"""What is counted; documents are those that were read."""


def gathered(folder: Folder, paths: Sequence[Path]) -> dict[str, Any]:
    """The manifest's `counts` over all parts, `refused` by reason and the first by name, and `parts`, one by one.

    Raises:
        InputError: a part isn't there any more.
    """
    counts = dict.fromkeys(COUNTS, 0)
    reasons: Counter[str] = Counter()
    documents: list[dict[str, Any]] = []
    found = []
    for path in paths:
        name = f"parts/{path.name}"
        data = folder.read(name)
        if data is None:
            raise InputError(
                "a part that was done is gone or damaged",
                where=str(path),
                advice="run the same command again: it is made again",
            )
        record = part_record(data)
        refused = record["refused"]
        own = {what: len(refused) if what == "refused" else record[what] for what in COUNTS}
        for what, number in own.items():
            counts[what] += number
        reasons.update(one["reason"] for one in refused)
        documents += refused[: MOST_REFUSED - len(documents)]
        found.append(
            {"name": name, "bytes": len(data), "sha256": sha256(data).hexdigest(), **own, "texts": record["texts"]}
        )
    return {
        "counts": counts,
        "refused": {"reasons": dict(sorted(reasons.items())), "documents": documents},
        "parts": found,
    }
