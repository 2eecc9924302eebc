"""Files beside a part: what syntax, labels and examples need of its documents, sealed as the part is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
from pyarrow import parquet

from headscope._survey.table import part_record

if TYPE_CHECKING:
    from headscope._survey.folder import Folder

PLACE = "atlas"
"""The folder within the survey's."""


def beside_name(kind: str, part: int) -> str:
    """Where one is, relative to the survey's folder."""
    return f"{PLACE}/{kind}-{part:05}.parquet"


def all_beside(folder: Folder, part: int, kinds: tuple[str, ...]) -> bool:
    """Return True if a part's files are all there and of this survey. Damaged and foreign ones are set aside."""
    whole = True
    for kind in kinds:
        name = beside_name(kind, part)
        data = folder.read(name)
        if data is None:
            whole = False
            continue
        record = part_record(data)
        if (record["run"], record["part"]) != (folder.stamp["run"], part):
            folder.set_aside(name, "it belongs to another part, or to another survey")
            whole = False
    return whole


def read_beside(folder: Path, kind: str, parts: int) -> Iterator[pyarrow.Table]:
    """One kind's table of every part, in order."""
    for part in range(parts):
        yield parquet.read_table(folder / beside_name(kind, part))
