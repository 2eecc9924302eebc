"""The windows that effects and writes are measured over: drawn by hash, cut by a replica, each kept in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow

from headscope.atlas.head_distance_windows import ChosenWindow
from headscope.atlas.store import part_record, sealed_parquet, table_of_bytes
from headscope.runs.window_readouts import TokenWindow

if TYPE_CHECKING:
    from headscope.atlas.folder import Folder
    from headscope.heads.windows import Window

NAME = "effects/windows.parquet"

COLUMNS = (
    ("rank", pyarrow.int32()),
    ("document", pyarrow.string()),
    ("window", pyarrow.int32()),
    ("number", pyarrow.int32()),
    ("ids", pyarrow.list_(pyarrow.int64())),
    ("segments", pyarrow.list_(pyarrow.int64())),
    ("special", pyarrow.list_(pyarrow.bool_())),
)


@dataclass(frozen=True, eq=False)
class EffectWindow:
    """A window that effects are measured over.

    Attributes:
        place: which window of the corpus it is.
        tokens: its tokens.
    """

    place: ChosenWindow
    tokens: TokenWindow


def effect_window(place: ChosenWindow, window: Window) -> EffectWindow:
    """A window that was cut with its words."""
    tokens = TokenWindow(
        f"{place.document}\0{place.window}",
        tuple(window.ids.tolist()),
        tuple(window.segments.tolist()),
        tuple(window.roles.special.tolist()),
    )
    return EffectWindow(place, tokens)


def windows_bytes(windows: Sequence[EffectWindow], stamp: Mapping[str, Any]) -> bytes:
    """The file of the windows, in the order of their ranks."""
    rows = [
        (
            window.place.rank,
            window.place.document,
            window.place.window,
            window.place.number,
            window.tokens.ids,
            window.tokens.segments,
            window.tokens.special,
        )
        for window in sorted(windows, key=lambda window: window.place.rank)
    ]
    columns = {name: pyarrow.array([row[at] for row in rows], kind) for at, (name, kind) in enumerate(COLUMNS)}
    return sealed_parquet(pyarrow.table(columns), {"run": stamp["run"]})


def kept_windows(folder: Folder, name: str, places: Sequence[ChosenWindow]) -> list[EffectWindow] | None:
    """The windows from a file; None if there is none. A damaged or foreign file is set aside."""
    data = folder.read(name)
    if data is None:
        return None
    rows = table_of_bytes(data).to_pylist()
    windows = [
        EffectWindow(
            ChosenWindow(row["rank"], row["document"], row["window"], row["number"]),
            TokenWindow(
                f"{row['document']}\0{row['window']}", tuple(row["ids"]), tuple(row["segments"]), tuple(row["special"])
            ),
        )
        for row in rows
    ]
    if part_record(data) == {"run": folder.stamp["run"]} and [window.place for window in windows] == list(places):
        return windows
    folder.set_aside(name, "it is of other windows, or of another survey")
    return None
