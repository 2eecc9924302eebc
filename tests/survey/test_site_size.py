"""The site of a model of 12 x 12 heads with windows of 512 tokens: its size depends on these, not on the corpus."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from finished_survey import finished, write_manifest
from headscope.atlas.shapes import REACH
from headscope.atlas.site import write_site
from headscope.results.schemas import (
    DistributionRow,
    Example,
    LabelRow,
    LineRow,
    RelationRow,
    SyntaxRow,
    columns,
    table_of,
)

LIMIT = 30_000_000
HEADS = 12
WORDS = 2 * 61
"""Words of a line whose pair is far apart."""


def add_tables(folder: Path) -> None:
    """As long as they get: 12 best and 6 random examples of each head, texts of 512 tokens, 80 relations."""
    drawn = random.Random(3)
    word = "".join(drawn.choices("abcdefghijklmnop", k=7))
    text = " ".join([word] * 400)
    tables: dict[str, tuple[type, list[Any]]] = {
        "labels": (LabelRow, []),
        "examples": (Example, []),
        "lines": (LineRow, []),
        "distributions": (DistributionRow, []),
        "relations": (RelationRow, []),
        "syntax": (SyntaxRow, []),
    }

    def add(name: str, **values: Any) -> None:
        row, kept = tables[name]
        kept.append(row(**{column: values.get(column, filler(kind)) for column, kind in columns(row)}))

    def filler(kind: pyarrow.DataType) -> Any:
        if pyarrow.types.is_string(kind) or pyarrow.types.is_boolean(kind):
            return word if pyarrow.types.is_string(kind) else False
        return (
            []
            if pyarrow.types.is_list(kind)
            else drawn.randrange(50)
            if pyarrow.types.is_integer(kind)
            else drawn.random()
        )

    for layer in range(HEADS):
        for head in range(HEADS):
            place = {"layer": layer, "head": head}
            clauses = {"query": ["DET", ""], "key": ["NOUN", ""], "relation": ["", "offset-1"], "side": ["ahead3", ""]}
            add("labels", **place, **clauses, note="", kind="class", looks="preposition")
            for rank in range(18):
                kind = "best" if rank < 12 else "random"
                where = {**place, "kind": kind, "rank": rank % 12, "query": 30, "key": 330}
                numbers = [*range(61), *range(300, 361)]
                add("examples", **where, up="obj", down=None)
                add(
                    "lines",
                    **where,
                    numbers=numbers,
                    words=[word] * WORDS,
                    weights=[drawn.random() for _ in numbers],
                    ids=list(range(30000, 30512)),
                    text=None if rank % 2 else text,
                )
            for at in range(-REACH, REACH + 1):
                add("distributions", **place, distance=at)
            for at in range(80):
                add("relations", **place, relation=f"relation:{at}", way="up")
    for at in range(80):
        add("syntax", relation=f"relation:{at}", direction="dependent->head", layer=at % HEADS, head=3)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["seal"]
    for name, (row, rows) in tables.items():
        path = folder / f"{name}.parquet"
        parquet.write_table(table_of(row, rows), path)
        data = path.read_bytes()
        manifest["files"][path.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_manifest(folder, manifest)


def test_the_site_of_bert_base_is_below_30_mb(tmp_path: Path) -> None:
    folder = finished(tmp_path, layers=HEADS, heads=HEADS)
    add_tables(folder)
    site = write_site(folder).parent
    sizes = {path.name: path.stat().st_size for path in site.iterdir()}
    assert len(sizes) == 3 + HEADS * HEADS
    total = sum(sizes.values())
    print(f"site {total / 1e6:.1f} MB, largest page {max(sizes.values()):,}")
    assert total < LIMIT
