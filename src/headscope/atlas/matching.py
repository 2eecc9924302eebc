"""Matches of many pairs: a table in a survey's kind of folder, and the pairs that a model gets wrong, taken apart.

The folder, its parts and the workers are those of a survey, so that a run can be interrupted and resumed, and runs on
Ray. Pairs are wrong where a document that doesn't belong to a query stands above one that does; where no query has
both, where a pair lies on the wrong side of the score that parts the labels best.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.atlas.documents import parts
from headscope.atlas.pair_readers import read_pairs
from headscope.atlas.run import Tally, check_extras, source_of, unfinished, versions, workers_for
from headscope.atlas.settings import Settings
from headscope.results.wrong_pairs import MatchedPairs, WrongPair

if TYPE_CHECKING:
    import pyarrow
    from jaxtyping import Bool, Float

    from headscope.atlas.folder import Folder
    from headscope.atlas.workers import Workers
    from headscope.model import Model

PART_SIZE = 50_000
"""Characters of pairs in a part."""
TABLE = "matches.parquet"
WRONG = 20
"""Wrong pairs that are taken apart by default."""


def match_pairs(
    model: Any,
    pairs: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    level: str = "input",
    kind: str | None = None,
    wrong: int = WRONG,
    threads: int | None = None,
    ray: bool | str = False,
    workers: int | None = None,
    progress: Callable[[Tally], None] | None = None,
) -> MatchedPairs:
    """Match every pair of a file, into a folder, with the settings of hs.match and hs.survey; the same call resumes.

    Args:
        model: a hub id or a folder, or a model from hs.open.
        pairs: a .jsonl or .csv file, or a folder: see headscope.atlas.pair_readers.
        out: the folder: matches.parquet, and the parts that it is made from.
        wrong: the most wrong pairs that are taken apart, those that are most wrong first.

    Raises:
        InputError: a line that isn't a pair, or a folder that holds something else.
        HeadscopeError: the model can't be loaded or computed, or an extra is missing.
    """
    check_extras(ray=bool(ray))
    from headscope.atlas.folder import Folder
    from headscope.atlas.match_parts import columns
    from headscope.explain.matching import engine_of

    source, _ = source_of(model, None, None)
    opened = source.opened()
    engine_of(opened, "query", ("document",), level, kind)  # refuses before the workers load the model
    folder, tally, report = Folder(Path(out), columns=columns()), Tally(None), progress or (lambda tally: None)
    with folder.locked(), workers_for(source, Settings(), threads, ray, workers) as crew:
        table = _fill(folder, Path(pairs), {"level": level, "kind": kind, "part_size": PART_SIZE}, crew, tally, report)
    mistakes = _mistakes(table)
    taken = [_wrong_pair(opened, row, by, level, kind) for row, by in mistakes[:wrong]]
    return MatchedPairs(source.public_name, folder.path / TABLE, len(table), len(mistakes), tuple(taken))


def _wrong_pair(model: Model, row: dict[str, Any], by: float, level: str, kind: str | None) -> WrongPair:
    """A row of the table, taken apart with its words masked and its links."""
    from headscope.explain.matching import match

    found = match(model, row["query"], row["document"], level=level, kind=kind)[0]
    return WrongPair(row["pair"], row["label"], by, found, tuple(found.links()))


def _fill(
    folder: Folder,
    pairs: Path,
    settings: dict[str, Any],
    crew: Workers,
    tally: Tally,
    report: Callable[[Tally], None],
) -> pyarrow.Table:
    """Write the parts that are not finished, and the table of all of them."""
    size = pairs.stat().st_size if pairs.is_file() else 0
    corpus = {"name": pairs.name, "kind": "pairs", "files": [{"name": pairs.name, "bytes": size}]}
    identity = {"model": crew.described.model, "settings": settings, "versions": versions(), "corpus": corpus}
    folder.begin({**identity, "statistics": [], "left_out": {}})
    report(tally)
    todo = unfinished(folder, parts(read_pairs(pairs), PART_SIZE), (), tally, report)
    for part, data, record, _ in crew.match(todo, folder.stamp):
        folder.write(f"parts/{folder.part_path(part.index).name}", data)
        tally.parts += 1
        tally.documents += record["documents"]
        tally.tokens += record["tokens"]
        report(tally)
    folder.check_no_more(tally.parts)
    tally.stage = "taking wrong pairs apart"
    report(tally)
    return _whole(folder, tally.parts)


def _whole(folder: Folder, count: int) -> pyarrow.Table:
    """The table of all parts, which is written."""
    import pyarrow

    from headscope.atlas.match_parts import columns
    from headscope.atlas.store import sealed_parquet, table_of_bytes

    tables = [table_of_bytes(folder.part_path(part).read_bytes()) for part in range(count)]
    whole = pyarrow.concat_tables(tables) if tables else columns().empty_table()
    folder.write(TABLE, sealed_parquet(whole))
    return whole


def _mistakes(table: pyarrow.Table) -> list[tuple[dict[str, Any], float]]:
    """The wrong pairs' rows, each with how far its score is on the wrong side, the farthest first."""
    rows = table.to_pylist()
    wrong = _on_the_wrong_side(*([row[name] for row in rows] for name in ("score", "label", "query")))
    return [(rows[at], wrong[at]) for at in sorted(wrong, key=lambda at: -wrong[at])]


def _on_the_wrong_side(scores: list[float], labels: list[int | None], queries: list[str]) -> dict[int, float]:
    """The numbers of the wrong pairs, each with how far its score is on the wrong side."""
    of_query: dict[str, list[int]] = defaultdict(list)
    for at, query in enumerate(queries):
        of_query[query].append(at)
    wrong: dict[int, float] = {}
    ranked = False
    for rows in of_query.values():
        good, bad = ([scores[at] for at in rows if labels[at] == label] for label in (1, 0))
        if good and bad:
            ranked = True
            wrong |= {at: scores[at] - min(good) for at in rows if labels[at] == 0 and scores[at] > min(good)}
    known = np.array([at for at, label in enumerate(labels) if label is not None], dtype=int)
    if ranked or not len(known):
        return wrong
    border = _border(np.array(scores)[known], np.array([labels[at] == 1 for at in known]))
    far = {int(at): (border - scores[at]) * (1 if labels[at] else -1) for at in known}
    return {at: distance for at, distance in far.items() if distance > 0}


def _border(scores: Float[np.ndarray, " pairs"], good: Bool[np.ndarray, " pairs"]) -> float:
    """The number between two scores that has most of the good pairs above it and of the others below."""
    order = np.argsort(scores, kind="stable")
    right = np.cumsum(np.where(good[order], -1, 1), dtype=int)
    best = int(np.argmax([0, *right]))
    ends = np.array([-np.inf, *scores[order], np.inf])
    low, high = ends[best], ends[best + 1]
    return float((low + high) / 2 if np.isfinite(low + high) else (high if np.isfinite(high) else low))
