"""A part of matched pairs: its columns, and its rows from a model."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow

from headscope.atlas.pair_readers import pair_of
from headscope.atlas.store import sealed_parquet
from headscope.explain.matching import match
from headscope.results.matching import SIDES

if TYPE_CHECKING:
    from headscope.atlas.documents import CorpusPart
    from headscope.model import Model

WORDS = 5
"""Strongest words of each pair that the table keeps."""


def columns() -> pyarrow.Schema:
    """The columns of the table."""
    word = pyarrow.struct([("side", pyarrow.string()), ("word", pyarrow.string()), ("share", pyarrow.float64())])
    return pyarrow.schema(
        [
            pyarrow.field("pair", pyarrow.string(), nullable=False),
            pyarrow.field("query", pyarrow.string(), nullable=False),
            pyarrow.field("document", pyarrow.string(), nullable=False),
            pyarrow.field("label", pyarrow.int8()),
            pyarrow.field("score", pyarrow.float64(), nullable=False),
            pyarrow.field("returned", pyarrow.float64(), nullable=False),
            pyarrow.field("kappa", pyarrow.float64(), nullable=False),
            pyarrow.field("words", pyarrow.list_(word), nullable=False),
            pyarrow.field("notes", pyarrow.list_(pyarrow.string()), nullable=False),
        ]
    )


def matched_part(
    model: Model, part: CorpusPart, stamp: dict[str, Any]
) -> tuple[bytes, dict[str, Any], dict[str, bytes]]:
    """The matches of a part's pairs as Parquet, and its record. Neighbouring pairs with one query share its pass."""
    settings = stamp["survey"]["settings"]
    rows, tokens = [], 0
    pairs = [(document.name, pair_of(document)) for document in part.documents]
    for query, group in groupby(pairs, key=lambda pair: pair[1].query):
        named = list(group)
        texts = [pair.document for _, pair in named]
        result = match(model, query, texts, level=settings["level"], kind=settings["kind"], check=False)
        for (name, pair), one in zip(named, result, strict=True):
            words = [{"side": word.side, "word": word.label, "share": word.share} for word in one.strongest(WORDS)]
            numbers = {"score": one.score, "returned": one.returned, "kappa": one.kappa}
            rows.append({"pair": name, **pair._asdict(), **numbers, "words": words, "notes": list(one.notes)})
            tokens += sum(len(getattr(one, side).inside) for side in SIDES)
    counts = {"documents": len(rows), "windows": len(rows), "tokens": tokens, "unknown": 0, "refused": []}
    record = {**stamp, "part": part.index, "texts": part.texts, **counts}
    return sealed_parquet(pyarrow.Table.from_pylist(rows, schema=columns()), record), record, {}
