"""The result of `hs.survey`: the folder of a finished survey, read."""

from __future__ import annotations

import os
import re
import shutil
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.atlas.survey_data import Files, read_records
from headscope.atlas.wording import counted
from headscope.checkpoint import called
from headscope.errors import InputError
from headscope.heads import CATALOG
from headscope.results.arrays import Arrays
from headscope.results.head_values import Head, HeadDistances, HeadValues
from headscope.results.row_tables import Rows
from headscope.results.table import HeadTable, MissingMeasureError, Placed, in_columns

if TYPE_CHECKING:
    import pyarrow

    from headscope.results.schemas import Example

LABEL_FIELDS = ("kind", "label", "score", "low", "high", "baseline", "coverage", "note")
"""Columns of `survey.labels` that tables of heads have as facts."""

TREEBANK = "syntax requires a treebank: survey .conllu files"
EFFECTS = "survey with effects=100, or --effects 100"
EXAMPLES = "survey with examples=10, or --examples 10"
"""Advice for surveys that lack a table."""


def _table(name: str, advice: str) -> property:
    """A table of a survey as a property."""

    def read(survey: Survey) -> pyarrow.Table:
        return survey.read(name, advice)

    read.__doc__ = f"The table `{name}`: see docs/survey.md.\n\nRaises:\n    InputError: the survey has none."
    return property(read)


class Survey(Placed, Rows, Arrays, Mapping[str, HeadValues]):
    """Statistic name -> (layers, heads), the mean over all windows, as `trace.statistics()` is for one text.

    `Survey("found")` opens the survey in the folder `found`.

    Attributes:
        folder: the folder with its files.
        manifest: as in manifest.json.
        aggregates: every measure, as in aggregates.json.
        layers: the number of each layer in the model.
        heads: the numbers of each layer's heads.
        syntax: the best head for each relation of a treebank.
        relations: the accuracy of every head for each relation.
        labels: the label of each head.
        effects: what silencing each head changes.
        removal: the heads in the order in which they can be removed.
        writes: the tokens that each head writes, and what they gain on text that didn't choose them.
        distributions: the mean weight of each head on the words at each distance.
        lines: of each example the words around it, and the weights of all of them.

    Raises:
        InputError: the folder has no survey, the survey is not complete, or one of its files is damaged or missing.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: bool = True, parts: bool = True) -> None:
        """Open a survey.

        Args:
            keep: False to remove the folder together with this object.
            parts: check the seal of every part, which reads all of them.
        """
        self.folder = Path(folder)
        self.manifest, self.aggregates = read_records(self.folder, parts=parts)
        self._files = Files.of(self.folder, self.manifest)
        self.layers = tuple(self.aggregates["layers"])
        self.heads = tuple(map(tuple, self.aggregates["heads"]))
        if not keep:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def measure(self, statistic: str, name: str) -> HeadValues:
        """One measure of a statistic over all windows, (layers, heads).

        Columns are numbers of heads; NaN where a layer has no such head.

        Args:
            statistic: its name.
            name: count, mean, deviation, min, q05, q25, q50, q75, q95 or max.

        Raises:
            InputError: there is no such statistic or measure.
        """
        known = self.aggregates["statistics"]
        if not isinstance(statistic, str) or statistic not in known:
            raise MissingMeasureError(
                f"the survey has no {statistic!r:.60}: "
                + self.manifest["left_out"].get(str(statistic), f"it has {', '.join(known)}"),
                where="survey[…]",
                advice="name one of docs/statistics.md; the numbers of one head are survey.table().of((3, 1))",
            )
        measures = [measure for measure in known[statistic] if measure != "meaning"]
        if name not in measures:
            raise InputError(f"no measure {name!r}", where="measure", advice=f"use one of {', '.join(measures)}")
        rows = [np.array(row, dtype=np.float64) for row in known[statistic][name]]
        return self._numbered(HeadValues.of(CATALOG[statistic], in_columns(rows, self.heads)))

    def table(self, measure: str = "mean") -> HeadTable:
        """One measure of every statistic over all windows; labels and written tokens, if there are any, are facts.

        Args:
            measure: count, mean, deviation, min, q05, q25, q50, q75, q95 or max.

        Raises:
            InputError: there is no such measure.
        """
        facts = self._facts()
        return HeadTable(
            {name: self.measure(name, measure) for name in self},
            layers=self.layers,
            heads=self.heads,
            facts=facts,
            left_out=self.manifest["left_out"],
            source=f"survey of {called(self.manifest['model']['name'])}",
        )

    def _facts(self) -> dict[str, dict[tuple[int, int], Any]]:
        """Return labels and written tokens of each head, by the name of their column."""
        rows = self.labels.select(["layer", "head", *LABEL_FIELDS]).to_pylist() if self.has("labels") else []
        facts = {
            name if name == "label" else f"label_{name}": {(row["layer"], row["head"]): row[name] for row in rows}
            for name in (LABEL_FIELDS if rows else ())
        }
        if self.has("writes"):
            facts["writes"] = {
                (row["layer"], row["head"]): " ".join(row["tokens"] if row["sure"] else ())
                for row in self.writes.to_pylist()
            }
        return facts

    syntax = _table("syntax", TREEBANK)
    relations = _table("relations", TREEBANK)
    labels = _table("labels", "survey with labels=True, or --labels")
    effects = _table("effects", EFFECTS)
    removal = _table("removal", EFFECTS)
    writes = _table("writes", "survey with writes=500, or --set writes=500")
    distributions = _table("distributions", "survey with labels=True or examples=10")
    lines = _table("lines", EXAMPLES)

    @property
    def examples(self) -> Mapping[Head, tuple[Example, ...]]:
        """`survey.examples[layer, head]`: the most telling pairs of words, and some random ones.

        Raises:
            InputError: the survey was made without examples.
        """
        from headscope.atlas.examples import Examples

        table = self.read("examples", EXAMPLES)
        return Examples(table)

    @property
    def similarity(self) -> HeadDistances:
        """The distances between the heads' weights: a matrix with `clusters(count)` and `plot()`.

        Raises:
            InputError: the survey was made without distances of heads.
        """
        table = self.read("similarity", "survey with head_distances=20, or --set head_distances=20")
        values, heads = table["distance"].to_numpy(), list(self.positions())
        return HeadDistances.of(np.asarray(values, dtype=np.float64).reshape(len(heads), len(heads)), heads)

    def has(self, table: str) -> bool:
        """Return True if the survey has this table: `labels`, `effects`, `syntax`, …"""
        return f"{table}.parquet" in self.manifest["files"]

    def read(self, table: str, advice: str = "`survey.has` says which tables there are") -> pyarrow.Table:
        """One of the survey's tables: `labels`, `sample`, … See docs/reference/survey-files.md.

        Raises:
            InputError: it has no such table.
        """
        if not self.has(table):
            raise InputError(f"the survey has no {table}", where=str(self.folder), advice=advice)
        return self._files.table(f"{table}.parquet")

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each head: its mean of every statistic over all windows, and its label, if the survey has some."""
        return self.table().rows()

    def plot(
        self,
        statistic: str,
        measure: str = "mean",
        *,
        ax: Any = None,
        width: float = 3.35,
        save: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Draw one measure of a statistic of every head: layers down, heads across. See `HeadValues.plot`.

        Raises:
            InputError: there is no such statistic or measure.
        """
        return self.measure(statistic, measure).plot(ax=ax, width=width, save=save)

    def windows(self) -> pyarrow.Table:
        """All rows of all parts, one per window, layer and head. They must fit in memory.

        Two columns lead back to your own rows: `file`, the document's file, and `row`, its place in that file or in the
        list of texts, from 0 as pandas counts (in JSON lines the line, less 1). Each is null where there is none.
        """
        tables = [self._files.table(part["name"]) for part in self.manifest["parts"]]
        import pyarrow

        table = pyarrow.concat_tables(tables).unify_dictionaries()
        documents = table["document"].combine_chunks()
        files = {file["name"] for file in self.manifest["corpus"]["files"]}
        places = [_place(name, files) for name in documents.dictionary.to_pylist()]
        columns = zip(("file", "row"), (pyarrow.string(), pyarrow.int64()), zip(*places, strict=True), strict=True)
        for at, (name, kind, values) in enumerate(columns, 1):
            table = table.add_column(at, name, pyarrow.array(values, kind).take(documents.indices))
        return table

    def __getitem__(self, statistic: str) -> HeadValues:
        return self.measure(statistic, "mean")

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest["statistics"])

    def __len__(self) -> int:
        return len(self.manifest["statistics"])

    def __contains__(self, name: object) -> bool:
        return name in self.manifest["statistics"]

    def __repr__(self) -> str:
        counts = self.manifest["counts"]
        totals = ", ".join(counted(counts[f"{thing}s"], thing) for thing in ("document", "window", "token"))
        lines = [f"survey of {called(self.manifest['model']['name'])}: {totals}; mean and range over heads"]
        lines += [values.spread() for values in self.values()]
        return "\n".join([*lines, f"in {self.folder}"])


def _place(document: str, files: set[str]) -> tuple[str | None, int | None]:
    """The file of a document, and its row there: `a.csv#3` is row 2 of a.csv, and `3` the fourth of texts in memory."""
    whole = document if document in files else document.rpartition(":")[0]  # of a file that was cut into pieces
    if whole in files:
        return whole, None
    file, _, row = document.rpartition("#") if files else ("", "", document)
    number = re.match(r"[0-9]{1,18}(?=:|\Z)", row)  # more digits don't fit into the column
    return file or None, int(number[0]) - bool(file) if number else None
