"""The findings that the page opens with: as records for its header, and the cell that a fresh page has pinned."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.scores import softmax_rows
from headscope.explain.content import content_of
from headscope.explain.findings import MOST, findings
from headscope.heads import Roles, roles_of
from headscope.heads.kinds import FINDINGS
from headscope.results.finding import Cell, Finding

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.traces import Trace

LEAST_LINK = 0.1
"""The least weight between two words that a page opens on where no finding is a link."""
NOT_LINKING = ("previous", "next", "same", "cls", "sep", "punctuation")
"""A head above the threshold of one of these is positional or a sink: a page doesn't open on it."""

Table = Mapping[str, "Float[np.ndarray, ' heads']"]


def page_findings(
    trace: Trace, narrow: Trace, tables: Sequence[Table]
) -> tuple[list[dict[str, Any]], dict[str, int] | None]:
    """The records of the page's findings, the most telling first, and the cell to open on.

    Args:
        trace: the whole trace, with its source.
        narrow: the layers and heads of it that the page holds.
        tables: by layer of `narrow`, the mean statistics of its heads.

    Returns:
        Records as `Finding.as_dict()`; and layer, head, query and key by number, None if there is nothing to open on.
    """
    held = {(layer, head) for layer in narrow.numbers for head in narrow.head_numbers(layer)}
    some = [_held(finding, held) for finding in findings(trace, layers=narrow.numbers, most=None)]
    listed = [finding for finding in some if finding is not None][:MOST]
    pinned = [finding.cells[0] for finding in listed if finding.cells[0].query is not None]
    linked = any(finding.kind == "link" for finding in listed)
    opening = pinned[0] if linked else _strongest_link(narrow, tables, roles_of(trace)) or next(iter(pinned), None)
    records = [finding.as_dict() for finding in listed]
    if opening is None or opening.query is None or opening.key is None:
        return records, None
    return records, {"layer": opening.layer, "head": opening.head, "query": opening.query, "key": opening.key}


def _held(finding: Finding, held: Container[tuple[int, int]]) -> Finding | None:
    """A finding with the cells that the page holds; None if it holds none, or one of two heads that look alike."""
    cells = tuple(cell for cell in finding.cells if (cell.layer, cell.head) in held)
    if not cells or (finding.kind == "alike" and len(cells) < len(finding.cells)):
        return None
    return replace(finding, cells=cells)


def _strongest_link(narrow: Trace, tables: Sequence[Table], roles: Roles) -> Cell | None:
    """The strongest weight between two words, in the sharpest head that is neither positional nor a sink."""
    if narrow.keys is not narrow.queries:
        return None
    best: tuple[float, int, int] | None = None
    for at, table in enumerate(tables):
        for head, sharp in enumerate(table["strongest"]):
            rests = any(table[name][head] > FINDINGS[name] for name in NOT_LINKING if name in table)
            if not rests and np.isfinite(sharp) and (best is None or sharp > best[0]):
                best = float(sharp), at, head
    if best is None:
        return None
    _, at, head = best
    record = narrow.layers[at]
    content = content_of(narrow, narrow.queries, roles)
    key_head = head // (len(record.q) // len(record.k))
    strongest, cell = LEAST_LINK, None
    rows = softmax_rows(
        record.q[head : head + 1],
        record.k[key_head : key_head + 1],
        scale=record.scale,
        mask=record.mask.of_head(head),
        terms=record.terms.of_head(head),
    )
    for part in rows:
        queries = np.asarray(part.rows)
        apart = content.place[queries][:, None] != content.place[None, :]
        weights = np.where(content.content[queries][:, None] & content.content[None, :] & apart, part.weights[0], 0)
        row, key = np.unravel_index(int(weights.argmax()), weights.shape)
        if weights[row, key] > strongest:
            strongest = float(weights[row, key])
            layer = narrow.numbers[at]
            cell = Cell(layer, narrow.head_numbers(layer)[head], int(queries[row]), int(key))
    return cell
