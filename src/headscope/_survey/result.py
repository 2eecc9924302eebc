"""The result of `hs.survey`: the folder of a finished survey, read."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headscope._survey.findings import read_records, table_of
from headscope._survey.wording import counted
from headscope._trace import Named
from headscope.checkpoint import called
from headscope.errors import InputError
from headscope.statistics.table import spread_line

if TYPE_CHECKING:
    import pyarrow

    from headscope._survey.examples import Examples


class Survey(Mapping[str, Named]):
    """Statistic name -> (layers, heads), the mean over all windows, as `trace.statistics()` is for one text.

    `Survey("found")` opens the survey in the folder `found`.

    Attributes:
        folder: the folder with its files.
        manifest: as in manifest.json.
        aggregates: every measure, as in aggregates.json.

    Raises:
        InputError: the folder has no survey, the survey is not complete, or one of its files is damaged or missing.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: bool = True, parts: bool = True) -> None:
        """Open a survey.

        Args:
            keep: False to remove the folder together with this object.
            parts: check every part against its hash, which reads all of them.
        """
        self.folder = Path(folder)
        self.manifest, self.aggregates = read_records(self.folder, parts=parts)
        if not keep:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def measure(self, statistic: str, name: str) -> Named:
        """One measure of a statistic over all windows, (layers, heads).

        Columns are numbers of heads; NaN where a layer has no such head.

        Args:
            statistic: its name.
            name: count, mean, deviation, min, q05, q25, q50, q75, q95 or max.

        Raises:
            InputError: there is no such statistic or measure.
        """
        known = self.aggregates["statistics"]
        if statistic not in known:
            raise InputError(
                f"the survey has no {statistic!r}: "
                + self.manifest["left_out"].get(statistic, f"it has {', '.join(known)}"),
                where="survey[…]",
                advice="see docs/statistics.md",
            )
        measures = [measure for measure in known[statistic] if measure != "meaning"]
        if name not in measures:
            raise InputError(f"no measure {name!r}", where="measure", advice=f"use one of {', '.join(measures)}")
        return Named(statistic, ("layers", "heads"), table_of(self.aggregates, statistic, name))

    @property
    def syntax(self) -> pyarrow.Table:
        """The best head for each relation of a treebank. See docs/survey.md.

        Raises:
            InputError: the corpus is not a treebank.
        """
        return self._table("syntax", "syntax requires a treebank: survey .conllu files")

    @property
    def labels(self) -> pyarrow.Table:
        """The label of each head. See docs/survey.md.

        Raises:
            InputError: the survey was made without labels.
        """
        return self._table("labels", "survey with labels=True, or --labels")

    @property
    def effects(self) -> pyarrow.Table:
        """What silencing each head changes. See docs/survey.md.

        Raises:
            InputError: the survey was made without effects.
        """
        return self._table("effects", "survey with effects=100, or --effects 100")

    @property
    def removal(self) -> pyarrow.Table:
        """The heads in the order in which they can be removed, and what that costs. See docs/survey.md.

        Raises:
            InputError: the survey was made without effects.
        """
        return self._table("removal", "survey with effects=100, or --effects 100")

    @property
    def examples(self) -> Examples:
        """`survey.examples[layer, head]`: the most telling pairs of words, and some random ones.

        Raises:
            InputError: the survey was made without examples.
        """
        from headscope._survey.examples import Examples

        return Examples(self._table("examples", "survey with examples=10, or --examples 10"))

    @property
    def relations(self) -> pyarrow.Table:
        """What every head finds of each relation of a treebank. See docs/survey.md.

        Raises:
            InputError: the corpus is not a treebank.
        """
        return self._table("relations", "syntax requires a treebank: survey .conllu files")

    @property
    def distributions(self) -> pyarrow.Table:
        """How focused each head is, how strong its strongest word, how far it looks. See docs/survey.md.

        Raises:
            InputError: the survey was made without labels and without examples.
        """
        return self._table("distributions", "survey with labels=True or examples=10")

    @property
    def lines(self) -> pyarrow.Table:
        """Of each example the words around it and the weights of all of them. See docs/survey.md.

        Raises:
            InputError: the survey was made without examples.
        """
        return self._table("lines", "survey with examples=10, or --examples 10")

    def has(self, table: str) -> bool:
        """Return True if the survey has this table: `labels`, `effects`, `syntax`, …"""
        return f"{table}.parquet" in self.manifest["files"]

    def _table(self, name: str, advice: str) -> pyarrow.Table:
        from pyarrow import parquet

        if not self.has(name):
            raise InputError(f"the survey has no {name}", where=str(self.folder), advice=advice)
        return parquet.read_table(self.folder / f"{name}.parquet")

    def rows(self) -> pyarrow.Table:
        """All rows of all parts, one per window, layer and head. They must fit in memory."""
        import pyarrow
        from pyarrow import parquet

        return pyarrow.concat_tables(
            [parquet.read_table(self.folder / part["name"]) for part in self.manifest["parts"]]
        ).unify_dictionaries()

    def __getitem__(self, statistic: str) -> Named:
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
        lines += [spread_line(name, self[name]) for name in self]
        return "\n".join([*lines, f"in {self.folder}"])
