"""The findings that the page opens with: as records for its header, and the cell that a fresh page has pinned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention import softmax_rows
from headscope.explain.content import content_of
from headscope.explain.finding_rules import THRESHOLDS
from headscope.explain.findings import Cell, findings
from headscope.statistics import Roles, roles_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace import Trace

MOST_FINDINGS = 12
"""Findings in a page's header."""
LEAST_LINK = 0.1
"""The least weight between two words that a page opens on where no finding is a link."""
NOT_LINKING = ("previous", "next", "same", "cls", "sep", "punctuation")
"""A head above the threshold of one of these is positional or a sink: a page doesn't open on it."""

Table = Mapping[str, "Float[np.ndarray, ' heads']"]


def page_findings(
    trace: Trace, narrow: Trace, tables: Sequence[Table]
) -> tuple[list[dict[str, Any]], dict[str, int] | None]:
    """The records of the page's findings, the most surprising first, and the cell to open on.

    Args:
        trace: the whole trace, with its source.
        narrow: the layers and heads of it that the page holds.
        tables: by layer of `narrow`, the mean statistics of its heads.

    Returns:
        Records as `Finding.as_dict()`, with the token that a [CLS] or [SEP] finding speaks of as `token`; and layer,
        head, query and key by number, None where there is nothing to open on.
    """
    roles = roles_of(trace)
    held = {(layer, head) for layer in narrow.numbers for head in narrow.head_numbers(layer)}
    every = [
        finding
        for finding in findings(trace, layers=narrow.numbers)
        if all((cell.layer, cell.head) in held for cell in finding.cells)
    ]
    links = [finding.cells[0] for finding in every if finding.kind == "link"]
    opening = links[0] if links else _strongest_link(narrow, tables, roles)
    records = [{**finding.as_dict(), "token": _token(trace, finding.kind, roles)} for finding in every[:MOST_FINDINGS]]
    if opening is None or opening.query is None or opening.key is None:
        return records, None
    return records, {"layer": opening.layer, "head": opening.head, "query": opening.query, "key": opening.key}


def _token(trace: Trace, kind: str, roles: Roles) -> str | None:
    """[CLS] or [SEP] as this vocabulary spells it, for a finding about it."""
    if kind not in ("cls", "sep"):
        return None
    return next((token for token, flag in zip(trace.keys.tokens, getattr(roles, kind), strict=True) if flag), None)


def _strongest_link(narrow: Trace, tables: Sequence[Table], roles: Roles) -> Cell | None:
    """The strongest weight between two words, in the sharpest head that is neither positional nor a sink."""
    if narrow.keys is not narrow.queries:
        return None
    best: tuple[float, int, int] | None = None
    for at, table in enumerate(tables):
        for head, sharp in enumerate(table["strongest"]):
            rests = any(table[name][head] > THRESHOLDS[name] for name in NOT_LINKING if name in table)
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
