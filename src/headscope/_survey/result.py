"""What `hs.survey` returns: the folder of a survey that is done, read."""

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
    """Statistic name -> (layers, heads), the mean over all windows, as `trace.statistics()` has it for one text.

    `Survey("found")` opens a survey that was made before.

    Attributes:
        folder: where the files are.
        manifest: what was done, as in manifest.json.
        aggregates: every measure, as in aggregates.json.

    Raises:
        InputError: the folder has no survey, or one that is not complete, or a file of it is damaged or missing.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: bool = True, parts: bool = True) -> None:
        """Open a survey.

        Args:
            keep: False: the folder is removed with this object.
            parts: whether every part is held against its hash, which reads all of them.
        """
        self.folder = Path(folder)
        self.manifest, self.aggregates = read_records(self.folder, parts=parts)
        if not keep:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def measure(self, statistic: str, name: str) -> Named:
        """(layers, heads): count, mean, deviation, min, q05, q25, q50, q75, q95 or max of a statistic over windows.

        A column for each head's number, NaN where a layer has no such head.

        Raises:
            InputError: there is no such statistic or measure.
        """
        known = self.aggregates["statistics"]
        if statistic not in known:
            raise InputError(
                f"the survey has no {statistic!r}: "
                + self.manifest["left_out"].get(statistic, f"there are {', '.join(known)}"),
                where="survey[…]",
                advice="see docs/statistics.md",
            )
        measures = [one for one in known[statistic] if one != "meaning"]
        if name not in measures:
            raise InputError(f"there is no {name!r}", where="measure", advice=f"take one of {', '.join(measures)}")
        return Named(statistic, ("layers", "heads"), table_of(self.aggregates, statistic, name))

    @property
    def syntax(self) -> pyarrow.Table:
        """The head that finds each relation best: see docs/survey.md.

        Raises:
            InputError: the corpus is no treebank.
        """
        return self._table("syntax", "its corpus is no treebank: survey .conllu files")

    @property
    def labels(self) -> pyarrow.Table:
        """Each head's label: see docs/survey.md.

        Raises:
            InputError: it was made without labels.
        """
        return self._table("labels", "survey with labels=True, or --labels")

    @property
    def examples(self) -> Examples:
        """`survey.examples[layer, head]`: the most telling pairs of words, and some drawn by lot.

        Raises:
            InputError: it was made without examples.
        """
        from headscope._survey.examples import Examples

        return Examples(self._table("examples", "survey with examples=10, or --examples 10"))

    def _table(self, name: str, lacking: str) -> pyarrow.Table:
        from pyarrow import parquet

        if f"{name}.parquet" not in self.manifest["files"]:
            raise InputError(f"the survey has no {name}", where=str(self.folder), advice=lacking)
        return parquet.read_table(self.folder / f"{name}.parquet")

    def rows(self) -> pyarrow.Table:
        """Every row of every part: one per window, layer and head. All in memory: for corpora that fit."""
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
        said = ", ".join(counted(counts[f"{thing}s"], thing) for thing in ("document", "window", "token"))
        lines = [f"survey of {called(self.manifest['model']['name'])}: {said}; mean and range over heads"]
        lines += [spread_line(name, self[name]) for name in self]
        return "\n".join([*lines, f"in {self.folder}"])
